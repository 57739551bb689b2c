"""Raw memory for compiled code: addresses, records of named fields, arrays, mapped files."""

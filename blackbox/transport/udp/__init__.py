"""Blocks in multicast datagrams: their layout, sending at a limited rate, receiving and reassembly."""

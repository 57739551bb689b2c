// Places and constants of blocks. Written by `make layout` from blackbox/block/form/layout.py.

export const VERSION = 3
export const MAGIC_BLOCK = 1481589314
export const CHECKSUM = 1
export const FIXED = 2
export const CONTROL = 4
export const LINE_B = 8
export const END = 16
export const SEQUENCES = 32
export const NULLS = 64
export const NUMBERS = 256
export const SAME = 4096
export const REFUSED = 512
export const KNOWN_FLAGS = 4991
export const HEADER_BYTES = 88
export const CHECKED_BYTES = 84
export const MAX_BODY_BYTES = 67108864
export const MAX_TOPIC_BYTES = 65535
export const LEAST_ROW_BYTES = 12
export const NONCE_BYTES = 8
export const MAX_KEY_BYTES = 8
export const MAX_CHANNELS = 128
export const AT_MAGIC = 0
export const AT_VERSION = 4
export const AT_KEY_RULE = 5
export const AT_FLAGS = 6
export const AT_SCHEMA = 8
export const AT_SLICE = 10
export const AT_COUNT = 12
export const AT_EPOCH = 16
export const AT_SEQUENCE = 24
export const AT_PREVIOUS = 32
export const AT_KEY_SEQUENCE = 40
export const AT_TS_OUT = 48
export const AT_TS_IN = 56
export const AT_TOPICS = 64
export const AT_TOPIC_BYTES = 68
export const AT_BODY_BYTES = 72
export const AT_STRIDE = 76
export const AT_BODY_CHECKSUM = 80
export const AT_HEADER_CHECKSUM = 84

export function readHeader(bytes) {
  return {
    magic: bytes.readUInt32LE(0),
    version: bytes.readUInt8(4),
    keyRule: bytes.readUInt8(5),
    flags: bytes.readUInt16LE(6),
    schema: bytes.readUInt16LE(8),
    slice: bytes.readUInt16LE(10),
    count: bytes.readUInt32LE(12),
    epoch: bytes.readBigInt64LE(16),
    sequence: bytes.readBigInt64LE(24),
    previous: bytes.readBigInt64LE(32),
    keySequence: bytes.readBigInt64LE(40),
    tsOut: bytes.readBigInt64LE(48),
    tsIn: bytes.readBigInt64LE(56),
    topics: bytes.readUInt32LE(64),
    topicBytes: bytes.readUInt32LE(68),
    bodyBytes: bytes.readUInt32LE(72),
    stride: bytes.readUInt32LE(76),
    bodyChecksum: bytes.readUInt32LE(80),
    headerChecksum: bytes.readUInt32LE(84),
  }
}

const align = place => (place + 7) & ~7

// Starts of the columns of a body, in bytes; tsEvent starts at 0.
export function columnsOf({ flags, count, topics, topicBytes }) {
  const topicIndexAt = 8 * count
  const payloadOffsetsAt = align(topicIndexAt + 4 * count)
  const sequencesAt = (flags & FIXED) != 0 ? payloadOffsetsAt : align(payloadOffsetsAt + 4 * (count + 1))
  const validityAt = (flags & SEQUENCES) != 0 ? sequencesAt + 8 * count : sequencesAt
  const sameAt = (flags & NULLS) != 0 ? align(validityAt + ((count + 7) >> 3)) : validityAt
  const topicOffsetsAt = (flags & SAME) != 0 ? align(sameAt + count) : sameAt
  const topicNumbersAt = align(topicOffsetsAt + 4 * (topics + 1))
  const topicsAt = (flags & NUMBERS) != 0 ? align(topicNumbersAt + 4 * topics) : topicNumbersAt
  const payloadsAt = align(topicsAt + topicBytes)
  return {
    topicIndex: topicIndexAt,
    payloadOffsets: payloadOffsetsAt,
    sequences: sequencesAt,
    validity: validityAt,
    same: sameAt,
    topicOffsets: topicOffsetsAt,
    topicNumbers: topicNumbersAt,
    topics: topicsAt,
    payloads: payloadsAt,
  }
}

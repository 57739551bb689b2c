/* Places and constants of blocks. Written by `make layout` from blackbox/block/form/layout.py. */

#include <stdint.h>

enum {
    VERSION = 3,
    MAGIC_BLOCK = 1481589314,
    CHECKSUM = 1,
    FIXED = 2,
    CONTROL = 4,
    LINE_B = 8,
    END = 16,
    SEQUENCES = 32,
    NULLS = 64,
    NUMBERS = 256,
    SAME = 4096,
    REFUSED = 512,
    KNOWN_FLAGS = 4991,
    HEADER_BYTES = 88,
    CHECKED_BYTES = 84,
    MAX_BODY_BYTES = 67108864,
    MAX_TOPIC_BYTES = 65535,
    LEAST_ROW_BYTES = 12,
    NONCE_BYTES = 8,
    MAX_KEY_BYTES = 8,
    MAX_CHANNELS = 128,
    AT_MAGIC = 0,
    AT_VERSION = 4,
    AT_KEY_RULE = 5,
    AT_FLAGS = 6,
    AT_SCHEMA = 8,
    AT_SLICE = 10,
    AT_COUNT = 12,
    AT_EPOCH = 16,
    AT_SEQUENCE = 24,
    AT_PREVIOUS = 32,
    AT_KEY_SEQUENCE = 40,
    AT_TS_OUT = 48,
    AT_TS_IN = 56,
    AT_TOPICS = 64,
    AT_TOPIC_BYTES = 68,
    AT_BODY_BYTES = 72,
    AT_STRIDE = 76,
    AT_BODY_CHECKSUM = 80,
    AT_HEADER_CHECKSUM = 84,
};

struct header {
    uint64_t magic;
    uint64_t version;
    uint64_t key_rule;
    uint64_t flags;
    uint64_t schema;
    uint64_t slice;
    uint64_t count;
    uint64_t epoch;
    uint64_t sequence;
    uint64_t previous;
    uint64_t key_sequence;
    uint64_t ts_out;
    uint64_t ts_in;
    uint64_t topics;
    uint64_t topic_bytes;
    uint64_t body_bytes;
    uint64_t stride;
    uint64_t body_checksum;
    uint64_t header_checksum;
};

/* Starts of the columns of a body, in bytes; ts_event starts at 0. */
struct columns {
    uint64_t topic_index;
    uint64_t payload_offsets;
    uint64_t sequences;
    uint64_t validity;
    uint64_t same;
    uint64_t topic_offsets;
    uint64_t topic_numbers;
    uint64_t topics;
    uint64_t payloads;
};

/* Integers are little-endian, at any address. */
static uint64_t number(const unsigned char *at, int size) {
    uint64_t value = 0;
    while (size-- > 0) value = value << 8 | at[size];
    return value;
}

static struct header read_header(const unsigned char *at) {
    return (struct header){
        number(at + 0, 4),
        number(at + 4, 1),
        number(at + 5, 1),
        number(at + 6, 2),
        number(at + 8, 2),
        number(at + 10, 2),
        number(at + 12, 4),
        number(at + 16, 8),
        number(at + 24, 8),
        number(at + 32, 8),
        number(at + 40, 8),
        number(at + 48, 8),
        number(at + 56, 8),
        number(at + 64, 4),
        number(at + 68, 4),
        number(at + 72, 4),
        number(at + 76, 4),
        number(at + 80, 4),
        number(at + 84, 4),
    };
}

static uint64_t align(uint64_t place) { return (place + 7) & ~(uint64_t)7; }

static struct columns columns_of(uint64_t flags, uint64_t count, uint64_t topics, uint64_t topic_bytes) {
    uint64_t topic_index_at = 8 * count;
    uint64_t payload_offsets_at = align(topic_index_at + 4 * count);
    uint64_t sequences_at = (flags & FIXED) != 0 ? payload_offsets_at : align(payload_offsets_at + 4 * (count + 1));
    uint64_t validity_at = (flags & SEQUENCES) != 0 ? sequences_at + 8 * count : sequences_at;
    uint64_t same_at = (flags & NULLS) != 0 ? align(validity_at + ((count + 7) >> 3)) : validity_at;
    uint64_t topic_offsets_at = (flags & SAME) != 0 ? align(same_at + count) : same_at;
    uint64_t topic_numbers_at = align(topic_offsets_at + 4 * (topics + 1));
    uint64_t topics_at = (flags & NUMBERS) != 0 ? align(topic_numbers_at + 4 * topics) : topic_numbers_at;
    uint64_t payloads_at = align(topics_at + topic_bytes);
    return (struct columns){
        topic_index_at,
        payload_offsets_at,
        sequences_at,
        validity_at,
        same_at,
        topic_offsets_at,
        topic_numbers_at,
        topics_at,
        payloads_at,
    };
}

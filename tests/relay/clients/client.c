/* A SUB in C: reads a feed by docs/wire-format.md alone, or what `blackbox relay --plain` sends.

       client blocks PREFIX KEY_RULE ENDPOINT...   until the last block of each endpoint
       client messages PREFIX COUNT ENDPOINT       COUNT messages, those under "warm" not among them

   Says "ready" when its subscriptions are in force. Then a line for each message: topic, ts_event, payload ("-": it has
   no value), and of blocks its sequence number; bytes in hex. Lines that begin with "gap" tell of what is missing. */

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "layout.h"

/* What this uses of libzmq 4, so that its header need not be installed. */
typedef struct { uint64_t opaque[8]; } zmq_msg_t;
typedef struct { void *socket; int fd; short events, revents; } zmq_pollitem_t;
enum { SUB = 2, SUBSCRIBE = 6, UNSUBSCRIBE = 7, LINGER = 17, MAXMSGSIZE = 22, RCVHWM = 24, POLLIN = 1 };
void *zmq_ctx_new(void);
int zmq_ctx_term(void *);
void *zmq_socket(void *, int);
int zmq_close(void *);
int zmq_connect(void *, const char *);
int zmq_setsockopt(void *, int, const void *, size_t);
int zmq_poll(zmq_pollitem_t *, int, long);
int zmq_msg_init(zmq_msg_t *);
int zmq_msg_recv(zmq_msg_t *, void *, int);
int zmq_msg_close(zmq_msg_t *);
void *zmq_msg_data(zmq_msg_t *);
size_t zmq_msg_size(const zmq_msg_t *);
int zmq_msg_more(const zmq_msg_t *);

enum { NONCE_KEY_BYTES = 2 + NONCE_BYTES, ACCEPT_KEY_BYTES = NONCE_KEY_BYTES + 9 };
enum { MOST_FRAMES = 3, MOST_SOURCES = 16, MOST_KEYS = 999 };

struct frame { const unsigned char *data; size_t size; };
struct source { void *socket; unsigned char nonce[NONCE_KEY_BYTES], accept[ACCEPT_KEY_BYTES]; int confirmed, ended; };
struct key { uint64_t slice; size_t size; unsigned char text[MAX_KEY_BYTES]; uint64_t end, count; };

static struct source sources[MOST_SOURCES];
static struct key keys[MOST_KEYS];
static int source_count, key_count, confirmed, ended;
static const char *prefix;
static const char *wanted; /* start of the wanted keys, which ZeroMQ filters by */
static size_t wanted_bytes;

static void need(int good, const char *what) {
    if (!good) {
        fprintf(stderr, "not as expected: %s\n", what);
        exit(1);
    }
}

static int starts_with(struct frame name, const char *text, size_t size) {
    return name.size >= size && memcmp(name.data, text, size) == 0;
}

static void print_hex(const unsigned char *data, size_t size) {
    while (size-- > 0) printf("%02x", *data++);
}

static void print_message(struct frame topic, int64_t ts_event, const struct frame *payload) {
    print_hex(topic.data, topic.size);
    printf(" %lld ", (long long)ts_event);
    if (payload != NULL) print_hex(payload->data, payload->size);
    else printf("-");
}

static struct key *key_of(uint64_t slice, struct frame text) {
    need(text.size <= MAX_KEY_BYTES, "a key of 8 bytes at most");
    for (int i = 0; i < key_count; i++)
        if (keys[i].slice == slice && keys[i].size == text.size && memcmp(keys[i].text, text.data, text.size) == 0)
            return &keys[i];
    need(key_count < MOST_KEYS, "fewer keys");
    struct key *made = &keys[key_count++];
    made->slice = slice, made->size = text.size, made->end = made->count = 0;
    memcpy(made->text, text.data, text.size);
    return made;
}

/* Move a key on to an end that should be where it is. */
static void expect(struct key *key, uint64_t end, uint64_t count) {
    if (end != key->end)
        printf("gap of %lld before %llu\n", (long long)(count - key->count), (unsigned long long)end);
    key->end = end, key->count = count;
}

/* The channel, as a key, of all topics that start with a text and its separator. */
static char channel_of(const char *text, size_t root_bytes, unsigned channels) {
    uint32_t crc = 0xFFFFFFFF;
    for (size_t i = 0; i < root_bytes; i++) {
        crc ^= (unsigned char)text[i];
        for (int bit = 0; bit < 8; bit++) crc = crc & 1 ? crc >> 1 ^ 0xEDB88320 : crc >> 1;
    }
    return (char)(1 + (~crc >> 16) % channels);
}

/* Find what the keys of topics with the prefix start with. `rule`: as in the header of each block. */
static void find_wanted(size_t rule) {
    static char channel;
    const char *separator = strchr(prefix, '.');
    wanted = prefix, wanted_bytes = rule < strlen(prefix) ? rule : strlen(prefix);
    if (rule > MAX_KEY_BYTES) {
        wanted = &channel, wanted_bytes = separator != NULL;
        if (separator != NULL) channel = channel_of(prefix, separator - prefix, rule - MAX_KEY_BYTES);
    }
}

static void filter(void *socket, int option, const void *key, size_t size) {
    need(zmq_setsockopt(socket, option, key, size) == 0, "an option that can be set");
}

static void accept_answer(struct source *from, const unsigned char *header, uint64_t flags) {
    memcpy(from->accept, "\0A", 2);
    memcpy(from->accept + 2, from->nonce + 2, NONCE_BYTES);
    memcpy(from->accept + NONCE_KEY_BYTES, header + AT_EPOCH, 8);
    from->accept[ACCEPT_KEY_BYTES - 1] = flags & LINE_B ? 1 : 0;
    filter(from->socket, SUBSCRIBE, from->accept, ACCEPT_KEY_BYTES);
    from->confirmed = 1;
    if (++confirmed == source_count) {
        printf("ready\n");
        fflush(stdout);
    }
}

static void read_block(struct source *from, const struct frame *frames) {
    const unsigned char *body = frames[2].data;
    need(frames[1].size == HEADER_BYTES, "a header of this version");
    struct header header = read_header(frames[1].data);
    need(header.magic == MAGIC_BLOCK && header.version == VERSION, "a block of this version");
    uint64_t flags = header.flags, slice = header.slice, topics = header.topics;
    need((flags & ~(uint64_t)KNOWN_FLAGS) == 0 && !(flags & REFUSED), "known flags, and no refusal");
    need(header.body_bytes == frames[2].size, "a body of that size");
    struct columns at = columns_of(flags, header.count, topics, header.topic_bytes);
    need(at.payloads <= header.body_bytes, "columns within the body");

    int is_answer = frames[0].size == NONCE_KEY_BYTES && memcmp(frames[0].data, from->nonce, NONCE_KEY_BYTES) == 0;
    int is_heartbeat = frames[0].size == 2 && memcmp(frames[0].data, "\0H", 2) == 0;
    if (flags & CONTROL && !is_answer && !is_heartbeat) return;
    struct key *key = flags & CONTROL ? NULL : key_of(slice, frames[0]);
    if (key != NULL && from->confirmed) expect(key, header.previous, header.key_sequence);

    for (uint64_t row = 0; row < header.count; row++) {
        uint64_t topic = number(body + at.topic_index + 4 * row, 4);
        need(topic < topics, "a topic that is there");
        uint64_t start = number(body + at.topic_offsets + 4 * topic, 4);
        uint64_t stop = number(body + at.topic_offsets + 4 * topic + 4, 4);
        need(start <= stop && stop <= header.topic_bytes, "a topic within the topics");
        struct frame name = {body + at.topics + start, stop - start};
        uint64_t begin = header.stride * row, end = begin + header.stride;
        if (!(flags & FIXED)) {
            begin = number(body + at.payload_offsets + 4 * row, 4);
            end = number(body + at.payload_offsets + 4 * row + 4, 4);
        }
        need(begin <= end && end <= header.body_bytes - at.payloads, "a payload within the body");
        struct frame payload = {body + at.payloads + begin, end - begin};
        if (flags & CONTROL) {
            struct key *told = key_of(slice, name);
            int is_wanted = starts_with(name, wanted, wanted_bytes);
            uint64_t end_of_key = number(payload.data, 8), count = number(payload.data + 8, 8);
            if (is_answer) told->end = end_of_key, told->count = count;
            else if (from->confirmed && is_wanted) expect(told, end_of_key, count);
            continue;
        }
        uint64_t sequence = flags & SEQUENCES ? number(body + at.sequences + 8 * row, 8) : header.sequence + row;
        key->end = sequence + 1, key->count = header.key_sequence + row + 1;
        if (!starts_with(name, prefix, strlen(prefix))) continue;
        int is_there = !(flags & NULLS) || body[at.validity + row / 8] >> row % 8 & 1;
        print_message(name, (int64_t)number(body + 8 * row, 8), is_there ? &payload : NULL);
        printf(" %llu\n", (unsigned long long)sequence);
    }
    if (is_answer && !from->confirmed) accept_answer(from, frames[1].data, flags);
    if (is_heartbeat && flags & END && !from->ended) {
        from->ended = 1;
        ended++;
        filter(from->socket, UNSUBSCRIBE, from->accept, ACCEPT_KEY_BYTES);
    }
}

/* Receive a whole message; return how many frames it has. */
static int receive(void *socket, zmq_msg_t *messages, struct frame *frames) {
    int count = 0, more = 1;
    for (; more; count++) {
        need(count < MOST_FRAMES, "three frames at most");
        zmq_msg_init(&messages[count]);
        need(zmq_msg_recv(&messages[count], socket, 0) >= 0, "a frame");
        frames[count].data = zmq_msg_data(&messages[count]);
        frames[count].size = zmq_msg_size(&messages[count]);
        more = zmq_msg_more(&messages[count]);
    }
    return count;
}

/* Take in one message from a relay that sends them one by one; return whether it counts. */
static int read_message(const struct frame *frames, int count) {
    static int is_ready;
    need(count >= 2 && frames[1].size == 8, "topic, ts_event and perhaps a payload");
    if (starts_with(frames[0], "warm", 4)) {
        if (!is_ready) printf("ready\n"), fflush(stdout);
        is_ready = 1;
        return 0;
    }
    print_message(frames[0], (int64_t)number(frames[1].data, 8), count == 3 ? &frames[2] : NULL);
    printf("\n");
    return 1;
}

int main(int words, char **word) {
    need(words >= 5, "blocks|messages PREFIX KEY_RULE|COUNT ENDPOINT...");
    int is_blocks = strcmp(word[1], "blocks") == 0;
    long left = atol(word[3]);
    prefix = word[2];
    wanted = prefix, wanted_bytes = strlen(prefix);
    if (is_blocks) find_wanted(left);
    void *context = zmq_ctx_new();
    zmq_pollitem_t items[MOST_SOURCES];
    FILE *random = fopen("/dev/urandom", "rb");
    need(random != NULL, "random bytes");
    for (; source_count < words - 4 && source_count < MOST_SOURCES; source_count++) {
        struct source *source = &sources[source_count];
        int64_t most_bytes = MAX_BODY_BYTES;
        int hwm = 100000, linger = 1000;
        source->socket = zmq_socket(context, SUB);
        filter(source->socket, MAXMSGSIZE, &most_bytes, sizeof most_bytes);
        filter(source->socket, RCVHWM, &hwm, sizeof hwm);
        filter(source->socket, LINGER, &linger, sizeof linger);
        need(zmq_connect(source->socket, word[4 + source_count]) == 0, "an endpoint");
        if (is_blocks) filter(source->socket, SUBSCRIBE, "\0H", 2);
        filter(source->socket, SUBSCRIBE, wanted, wanted_bytes);
        memcpy(source->nonce, "\0C", 2);
        need(fread(source->nonce + 2, NONCE_BYTES, 1, random) == 1, "8 random bytes");
        if (is_blocks) filter(source->socket, SUBSCRIBE, source->nonce, NONCE_KEY_BYTES);
        else filter(source->socket, SUBSCRIBE, "warm", 4);
        items[source_count] = (zmq_pollitem_t){source->socket, 0, POLLIN, 0};
    }
    while (is_blocks ? ended < source_count : left > 0) {
        need(zmq_poll(items, source_count, 60000) > 0, "something within a minute");
        for (int i = 0; i < source_count; i++) {
            if (!(items[i].revents & POLLIN)) continue;
            zmq_msg_t messages[MOST_FRAMES];
            struct frame frames[MOST_FRAMES];
            int count = receive(sources[i].socket, messages, frames);
            if (is_blocks) {
                need(count == 3, "key, header and body");
                read_block(&sources[i], frames);
            } else
                left -= read_message(frames, count);
            for (int n = 0; n < count; n++) zmq_msg_close(&messages[n]);
        }
    }
    for (int i = 0; i < source_count; i++) zmq_close(sources[i].socket);
    zmq_ctx_term(context);
    return 0;
}

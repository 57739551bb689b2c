// A SUB in Node: reads a feed by docs/wire-format.md alone, or what `blackbox relay --plain` sends.
//
//     node client.mjs blocks PREFIX KEY_RULE ENDPOINT...   until the last block of each endpoint
//     node client.mjs messages PREFIX COUNT ENDPOINT       COUNT messages, those under "warm" not among them
//
// Says "ready" when its subscriptions are in force. Then a line for each message: topic, ts_event, payload ("-": it has
// no value), and of blocks its sequence number; bytes in hex. Lines that begin with "gap" tell of what is missing.

import { randomBytes } from "node:crypto"
import { writeSync } from "node:fs"
import * as zmq from "zeromq"
import * as layout from "./layout.mjs"

const { CONTROL, END, FIXED, LINE_B, NULLS, SEQUENCES } = layout
const HEARTBEAT = Buffer.from("\0H"), CONFIRM = Buffer.from("\0C"), ACCEPT = Buffer.from("\0A")

const [kind, prefixText, number, ...endpoints] = process.argv.slice(2)
const prefix = Buffer.from(prefixText)
const filter = kind === "blocks" ? wantedKeys(Number(number)) : prefix
const ends = new Map() // by slice and key: behind its last message, and how many it has sent
let confirmed = 0

const say = line => writeSync(1, line + "\n")
const startsWith = (bytes, begin) => bytes.subarray(0, begin.length).equals(begin)

// The channel, as a key, of all topics with a root.
function channelOf(root, channels) {
  let crc = -1
  for (const byte of root) {
    crc ^= byte
    for (let bit = 0; bit < 8; bit++) crc = crc & 1 ? (crc >>> 1) ^ 0xedb88320 : crc >>> 1
  }
  return Buffer.of(1 + (~crc >>> 16) % channels)
}

// What the keys of topics with the prefix start with. `rule`: as in the header of each block.
function wantedKeys(rule) {
  if (rule <= layout.MAX_KEY_BYTES) return prefix.subarray(0, rule)
  const separator = prefix.indexOf(".")
  return separator < 0 ? Buffer.alloc(0) : channelOf(prefix.subarray(0, separator), rule - layout.MAX_KEY_BYTES)
}

function need(good, what) {
  if (!good) throw new Error(`not as expected: ${what}`)
}

function expect(place, end, count) {
  const [known, before] = ends.get(place) ?? [0n, 0n]
  if (end !== known) say(`gap of ${count - before} before ${end}`)
  ends.set(place, [end, count])
}

function open(endpoint) {
  const socket = new zmq.Subscriber({ maxMessageSize: layout.MAX_BODY_BYTES, receiveHighWaterMark: 100_000, linger: 1_000 })
  socket.connect(endpoint)
  return socket
}

function* rows(header, body) {
  const { flags, count, sequence: first, stride } = header
  const at = layout.columnsOf(header)
  need(at.payloads <= body.length, "columns within the body")
  for (let row = 0; row < count; row++) {
    const topic = at.topicOffsets + 4 * body.readInt32LE(at.topicIndex + 4 * row)
    const begin = flags & FIXED ? stride * row : body.readInt32LE(at.payloadOffsets + 4 * row)
    const end = flags & FIXED ? begin + stride : body.readInt32LE(at.payloadOffsets + 4 * row + 4)
    need(begin <= end && at.payloads + end <= body.length, "a payload within the body")
    const isThere = !(flags & NULLS) || (body[at.validity + (row >> 3)] >> (row & 7)) & 1
    yield {
      topic: body.subarray(at.topics + body.readInt32LE(topic), at.topics + body.readInt32LE(topic + 4)),
      time: body.readBigInt64LE(8 * row),
      payload: isThere ? body.subarray(at.payloads + begin, at.payloads + end) : null,
      sequence: flags & SEQUENCES ? body.readBigInt64LE(at.sequences + 8 * row) : first + BigInt(row),
    }
  }
}

async function readBlocks(endpoint) {
  const socket = open(endpoint)
  const nonce = Buffer.concat([CONFIRM, randomBytes(layout.NONCE_BYTES)])
  socket.subscribe(HEARTBEAT, filter, nonce)
  let accepted = null
  for await (const frames of socket) {
    need(frames.length === 3, "key, header and body")
    const [key, head, body] = frames
    need(head.length === layout.HEADER_BYTES, "a header of this version")
    const header = layout.readHeader(head), { flags, slice } = header
    need(header.magic === layout.MAGIC_BLOCK && header.version === layout.VERSION, "a block of this version")
    need((flags & ~layout.KNOWN_FLAGS) === 0 && !(flags & layout.REFUSED), "known flags, and no refusal")
    need(header.bodyBytes === body.length, "a body of that size")
    if (flags & CONTROL) {
      const isAnswer = key.equals(nonce)
      if (!isAnswer && !key.equals(HEARTBEAT)) continue
      for (const { topic, payload } of rows(header, body)) {
        const place = `${slice} ${topic.toString("hex")}`
        const end = payload.readBigInt64LE(), count = payload.readBigInt64LE(8)
        if (isAnswer) ends.set(place, [end, count])
        else if (accepted && startsWith(topic, filter)) expect(place, end, count)
      }
      if (isAnswer && !accepted) {
        const line = Buffer.from([flags & LINE_B ? 1 : 0])
        accepted = Buffer.concat([ACCEPT, nonce.subarray(2), head.subarray(layout.AT_EPOCH, layout.AT_EPOCH + 8), line])
        socket.subscribe(accepted)
        if (++confirmed === endpoints.length) say("ready")
      }
      if (flags & END && accepted) {
        socket.unsubscribe(accepted)
        break
      }
      continue
    }
    const place = `${slice} ${key.toString("hex")}`
    if (accepted) expect(place, header.previous, header.keySequence)
    for (const { topic, time, payload, sequence } of rows(header, body)) {
      ends.set(place, [sequence + 1n, header.keySequence + BigInt(header.count)])
      if (startsWith(topic, prefix))
        say(`${topic.toString("hex")} ${time} ${payload?.toString("hex") ?? "-"} ${sequence}`)
    }
  }
  socket.close()
}

async function readMessages(endpoint) {
  const socket = open(endpoint)
  socket.subscribe(prefix, "warm")
  let left = Number(number), isReady = false
  while (left > 0) {
    const [topic, time, payload] = await socket.receive()
    if (startsWith(topic, Buffer.from("warm"))) {
      if (!isReady) say("ready")
      isReady = true
    } else {
      say(`${topic.toString("hex")} ${time.readBigInt64LE()} ${payload?.toString("hex") ?? "-"}`)
      left--
    }
  }
  socket.close()
}

await Promise.all(endpoints.map(kind === "blocks" ? readBlocks : readMessages))

// A SUB in Node: reads a feed by docs/wire-format.md alone, or what `blackbox relay --plain` sends.
//
//     node client.mjs blocks PREFIX KEY_BYTES ENDPOINT...   until the last block of each endpoint
//     node client.mjs messages PREFIX COUNT ENDPOINT        COUNT messages, those under "warm" not among them
//
// Says "ready" when its subscriptions are in force. Then a line for each message: topic, ts_event, payload ("-": it has
// no value), and of blocks its sequence number; bytes in hex. Lines that begin with "gap" tell of what is missing.

import { randomBytes } from "node:crypto"
import { writeSync } from "node:fs"
import * as zmq from "zeromq"

const FIXED = 2, CONTROL = 4, LINE_B = 8, END = 16, SEQUENCES = 32, NULLS = 64, NUMBERS = 256, KNOWN = 127 | 256
const HEARTBEAT = Buffer.from("\0H"), CONFIRM = Buffer.from("\0C"), ACCEPT = Buffer.from("\0A")

const [kind, prefixText, number, ...endpoints] = process.argv.slice(2)
const prefix = Buffer.from(prefixText)
const filter = kind === "blocks" ? prefix.subarray(0, Number(number)) : prefix
const next = new Map() // by slice and key
let confirmed = 0

const say = line => writeSync(1, line + "\n")
const startsWith = (bytes, begin) => bytes.subarray(0, begin.length).equals(begin)
const align = place => (place + 7) & ~7

function need(good, what) {
  if (!good) throw new Error(`not as expected: ${what}`)
}

function expect(place, sequence) {
  const known = next.get(place) ?? 0n
  if (sequence !== known) say(`gap ${known} to ${sequence}`)
  next.set(place, sequence)
}

function open(endpoint) {
  const socket = new zmq.Subscriber({ maxMessageSize: 64 << 20, receiveHighWaterMark: 100_000, linger: 1_000 })
  socket.connect(endpoint)
  return socket
}

function* rows(header, body, flags) {
  const count = header.readUInt32LE(12), first = header.readBigInt64LE(24)
  const topics = header.readUInt32LE(48), topicBytes = header.readUInt32LE(52), stride = header.readUInt32LE(60)
  const index = 8 * count
  const payloadOffsets = align(index + 4 * count)
  const sequences = flags & FIXED ? payloadOffsets : align(payloadOffsets + 4 * (count + 1))
  const validity = flags & SEQUENCES ? sequences + 8 * count : sequences
  const topicOffsets = flags & NULLS ? align(validity + ((count + 7) >> 3)) : validity
  const topicNumbers = align(topicOffsets + 4 * (topics + 1))
  const text = flags & NUMBERS ? align(topicNumbers + 4 * topics) : topicNumbers
  const payloads = align(text + topicBytes)
  need(payloads <= body.length, "columns within the body")
  for (let row = 0; row < count; row++) {
    const topic = topicOffsets + 4 * body.readInt32LE(index + 4 * row)
    const begin = flags & FIXED ? stride * row : body.readInt32LE(payloadOffsets + 4 * row)
    const end = flags & FIXED ? begin + stride : body.readInt32LE(payloadOffsets + 4 * row + 4)
    need(begin <= end && payloads + end <= body.length, "a payload within the body")
    const isThere = !(flags & NULLS) || (body[validity + (row >> 3)] >> (row & 7)) & 1
    yield {
      topic: body.subarray(text + body.readInt32LE(topic), text + body.readInt32LE(topic + 4)),
      time: body.readBigInt64LE(8 * row),
      payload: isThere ? body.subarray(payloads + begin, payloads + end) : null,
      sequence: flags & SEQUENCES ? body.readBigInt64LE(sequences + 8 * row) : first + BigInt(row),
    }
  }
}

async function readBlocks(endpoint) {
  const socket = open(endpoint)
  const nonce = Buffer.concat([CONFIRM, randomBytes(8)])
  socket.subscribe(HEARTBEAT, filter, nonce)
  let accepted = null
  for await (const frames of socket) {
    need(frames.length === 3, "key, header and body")
    const [key, header, body] = frames
    need(header.length === 72 && header.toString("latin1", 0, 5) === "BBOX\x02", "a header of version 2")
    const flags = header.readUInt16LE(6), slice = header.readUInt16LE(10)
    need((flags & ~KNOWN) === 0, "known flags")
    need(header.readUInt32LE(56) === body.length, "a body of that size")
    if (flags & CONTROL) {
      const isAnswer = key.equals(nonce)
      if (!isAnswer && !key.equals(HEARTBEAT)) continue
      for (const { topic, payload } of rows(header, body, flags)) {
        const place = `${slice} ${topic.toString("hex")}`
        if (isAnswer) next.set(place, payload.readBigInt64LE())
        else if (accepted && startsWith(topic, filter)) expect(place, payload.readBigInt64LE())
      }
      if (isAnswer && !accepted) {
        const line = Buffer.from([flags & LINE_B ? 1 : 0])
        accepted = Buffer.concat([ACCEPT, nonce.subarray(2), header.subarray(16, 24), line])
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
    let isFirst = true
    for (const { topic, time, payload, sequence } of rows(header, body, flags)) {
      if (accepted && (isFirst || !(flags & SEQUENCES))) expect(place, sequence)
      isFirst = false
      next.set(place, sequence + 1n)
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

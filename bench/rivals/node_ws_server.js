// Sends the lines of a file, without their receive times, to each WebSocket client: `node node_ws_server.js FILE`.
const { readFileSync } = require("fs");
const { WebSocketServer } = require("ws");

const frames = readFileSync(process.argv[2], "latin1")
  .split("\n")
  .filter((line) => line.includes('{"stream"'))
  .map((line) => Buffer.from(line.slice(line.indexOf(" ") + 1), "latin1"));
const MOST_WAITING = 8 << 20;
const server = new WebSocketServer({ host: "127.0.0.1", port: 0, perMessageDeflate: false });

server.on("listening", () => console.log(server.address().port));
server.on("connection", (socket) => {
  let next = 0;
  const more = () => {
    while (next < frames.length && socket.bufferedAmount < MOST_WAITING) {
      socket.send(frames[next++], { binary: false });
    }
    if (next < frames.length) setImmediate(more);
    else socket.close();
  };
  more();
});

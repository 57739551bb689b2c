"""ZeroMQ below Python: libzmq's functions for compiled code, contexts, wake-ups, connections, CURVE; shared memory.

In: sockets and messages as addresses. Out: libzmq's own results. A socket belongs to the thread that created it.

Shared memory, with the layout of `shared_memory/layout.py`; a place is a buffer for one body:

- Writing a block: the publisher claims a place that every reader has passed (with `drop`, also one more than
  `hwm_blocks` old) and that no reader has pinned. It sets the place's position to -1, issues a fence, and checks the
  pins again. Then it writes, in this order: the body, the descriptor (position -1 first), the place's position, the
  descriptor's position, the tail. After another fence it rings the bells of sleeping readers.
- Reading a block: the reader copies the descriptor at its cursor and checks that its position is unchanged. It pins the
  place, issues a fence, and checks the place's position. If it is unchanged, the body is valid until the pin is
  removed; otherwise the block is lost. Before it sleeps, the reader sets `sleeping`, issues a fence, and compares tail
  and cursor again.
- Control blocks arrive on the lines. A reader first takes the blocks up to the tail that it sees.
- Handshake: the publisher listens on an abstract Unix socket (`SOCK_SEQPACKET`), `blackbox/UID/NAME` after a zero byte.
  Both ends check that the other has the same user (`SO_PEERCRED`). The reader sends `HELLO` and, by `SCM_RIGHTS`, both
  ends of its bell. The publisher answers with `WELCOME`, a memfd with a sealed size, and both ends of its bell, or
  closes the connection if all slots are taken. A reader keeps the connection until its places are released.
- The reader subscribes on the lines to `00 53` and its prefixes. The publisher writes a block to memory if such a
  prefix covers its key, and sends it on the lines if a plain prefix does.
"""

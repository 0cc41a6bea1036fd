//! What a raw TCP connection over loopback does on this machine: the measure of everything above it.
//!
//! Both ends are threads, pinned where there are two cores, with non-blocking sockets that are never waited
//! for. The ping-pong sends 64 bytes, a command, and gets a block back. The stream is as fast as it gets, twice:
//! one chunk out of the cache again and again, and out of as much memory as a volume has, which fits in no cache.
use std::io::{self, ErrorKind, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::thread;
use std::time::{Duration, Instant};

use ironside_common::reactor::pin_to_core;
use serde::Serialize;

const PING: usize = 64;
const PAGE: usize = 4096;
/// Chunks the stream is tried with; the best counts.
const CHUNKS: [usize; 5] = [16 << 10, 64 << 10, 128 << 10, 256 << 10, 1 << 20];
/// Memory a stream goes through which a volume of the suite's size could serve.
pub(super) const VOLUME: usize = 1 << 30;

/// The figures.
#[derive(Clone, Copy, Debug, Serialize)]
pub(super) struct Baseline {
    pub block_size: u64,
    /// Round trips of 64 bytes out and a block back.
    pub ping_pongs_per_second: f64,
    pub stream_bytes_per_second: f64,
    /// The chunk it was best with.
    pub stream_chunk: usize,
    /// The same out of [`VOLUME`] bytes of memory, one after the other.
    pub memory_stream_bytes_per_second: f64,
}

impl Baseline {
    /// In the middle of two.
    pub(super) fn between(&self, other: &Self) -> Self {
        Self {
            ping_pongs_per_second: f64::midpoint(self.ping_pongs_per_second, other.ping_pongs_per_second),
            stream_bytes_per_second: f64::midpoint(
                self.stream_bytes_per_second,
                other.stream_bytes_per_second,
            ),
            memory_stream_bytes_per_second: f64::midpoint(
                self.memory_stream_bytes_per_second,
                other.memory_stream_bytes_per_second,
            ),
            ..*self
        }
    }

    pub(super) fn ping_pong_us(&self) -> f64 {
        1e6 / self.ping_pongs_per_second
    }
}

/// The memory a stream is sent from; written, so that every page of it is there.
pub(super) struct Memory(Vec<u8>);

impl Memory {
    pub(super) fn new() -> Self {
        Self(vec![7; VOLUME])
    }
}

/// Measures all again with the chunk that was best, `duration` for each: a busy machine is not what it was a
/// minute ago, and only neighbours in time can be compared.
pub(super) fn measure_again(memory: &Memory, before: &Baseline, duration: Duration) -> io::Result<Baseline> {
    let block = usize::try_from(before.block_size).map_err(io::Error::other)?;
    let chunk = before.stream_chunk;
    Ok(Baseline {
        ping_pongs_per_second: ping_pong(block, duration)?,
        stream_bytes_per_second: stream(&memory.0[..chunk], chunk, duration)?,
        memory_stream_bytes_per_second: stream(&memory.0, chunk, duration)?,
        ..*before
    })
}

/// Measures all, `duration` for the ping-pong, as much for all chunks together, and as much for the memory.
pub(super) fn measure(memory: &Memory, block_size: u64, duration: Duration) -> io::Result<Baseline> {
    let block = usize::try_from(block_size).map_err(io::Error::other)?;
    let mut best = Baseline {
        block_size,
        ping_pongs_per_second: ping_pong(block, duration)?,
        stream_bytes_per_second: 0.0,
        stream_chunk: 0,
        memory_stream_bytes_per_second: 0.0,
    };
    for chunk in CHUNKS {
        let rate = stream(&memory.0[..chunk], chunk, duration / CHUNKS.len() as u32)?;
        if rate > best.stream_bytes_per_second {
            best = Baseline { stream_bytes_per_second: rate, stream_chunk: chunk, ..best };
        }
    }
    let memory_stream_bytes_per_second = stream(&memory.0, best.stream_chunk, duration)?;
    Ok(Baseline { memory_stream_bytes_per_second, ..best })
}

fn ping_pong(block: usize, duration: Duration) -> io::Result<f64> {
    with_peer(
        move |mut socket| {
            let (mut ping, pong) = (vec![0; PING], vec![7; block]);
            while read_all(&mut socket, &mut ping)? {
                write_all(&mut socket, &pong)?;
            }
            Ok(())
        },
        |mut socket| {
            let (ping, mut pong) = (vec![1; PING], vec![0; block]);
            let began = Instant::now();
            let mut count = 0_u32;
            while began.elapsed() < duration {
                write_all(&mut socket, &ping)?;
                if !read_all(&mut socket, &mut pong)? {
                    return Err(ErrorKind::UnexpectedEof.into());
                }
                count += 1;
            }
            Ok(f64::from(count) / began.elapsed().as_secs_f64())
        },
    )
}

/// Bytes a second of a stream which sends `memory` over and over, a chunk at a time.
fn stream(memory: &[u8], chunk: usize, duration: Duration) -> io::Result<f64> {
    with_peer(
        move |mut socket| {
            // It ends when the other side has gone.
            while memory.chunks(chunk).all(|bytes| write_all(&mut socket, bytes).is_ok()) {}
            Ok(())
        },
        |mut socket| {
            // Some processors copy several times slower to a little behind where in a page they copy from, and
            // an allocator hands out large buffers just there.
            let mut buffer = vec![0; chunk + PAGE];
            let aligned = buffer.as_ptr().align_offset(PAGE);
            let buffer = &mut buffer[aligned..aligned + chunk];
            let began = Instant::now();
            let mut received = 0.0;
            while began.elapsed() < duration {
                match socket.read(buffer) {
                    Ok(count) => received += count as f64,
                    Err(error) if error.kind() == ErrorKind::WouldBlock => std::hint::spin_loop(),
                    Err(error) => return Err(error),
                }
            }
            Ok(received / began.elapsed().as_secs_f64())
        },
    )
}

/// Runs both ends of one connection, `here` on the first core, `there` on the second.
fn with_peer<R: Send>(
    there: impl FnOnce(TcpStream) -> io::Result<()> + Send,
    here: impl FnOnce(TcpStream) -> io::Result<R> + Send,
) -> io::Result<R> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let address = listener.local_addr()?;
    thread::scope(|scope| {
        let peer = scope.spawn(move || {
            pin(1);
            there(prepare(listener.accept()?.0)?)
        });
        // On a thread of its own, so that nobody else is left pinned.
        let result = scope.spawn(move || {
            pin(0);
            here(prepare(TcpStream::connect(address)?)?)
        });
        let result = result.join().expect("no panic in a loop of reads and writes")?;
        peer.join().expect("no panic in a loop of reads and writes")?;
        Ok(result)
    })
}

fn pin(core: usize) {
    if let Err(error) = pin_to_core(core) {
        eprintln!("core {core} cannot be had ({error}); the baseline runs where it may");
    }
}

fn prepare(socket: TcpStream) -> io::Result<TcpStream> {
    socket.set_nodelay(true)?;
    socket.set_nonblocking(true)?;
    Ok(socket)
}

fn write_all(socket: &mut TcpStream, mut bytes: &[u8]) -> io::Result<()> {
    while !bytes.is_empty() {
        match socket.write(bytes) {
            Ok(count) => bytes = &bytes[count..],
            Err(error) if error.kind() == ErrorKind::WouldBlock => std::hint::spin_loop(),
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// False at the end of the stream.
fn read_all(socket: &mut TcpStream, mut into: &mut [u8]) -> io::Result<bool> {
    while !into.is_empty() {
        match socket.read(into) {
            Ok(0) => return Ok(false),
            Ok(count) => into = &mut into[count..],
            Err(error) if error.kind() == ErrorKind::WouldBlock => std::hint::spin_loop(),
            Err(error) if error.kind() == ErrorKind::ConnectionReset => return Ok(false),
            Err(error) => return Err(error),
        }
    }
    Ok(true)
}

//! `ironside-tools decode`: one line for each message of a capture, or of bytes written in hexadecimal.
mod capsule;
mod capture;
mod conversation;
mod direction;
mod roce;
#[cfg(test)]
mod tests;

use std::io::{Read, Write};
use std::path::PathBuf;
use std::time::Duration;
use std::{fs, io};

use anyhow::{Context, bail};
use clap::{Args, ValueEnum};
use ironside_common::nvme::QueueKind;
use serde::Serialize;

#[derive(Args)]
pub(crate) struct Decode {
    /// A pcap or pcapng file with iWARP or RoCEv2, or text in hexadecimal; `-` reads from standard input.
    #[arg(default_value = "-")]
    input: PathBuf,
    /// What hexadecimal bytes are.
    #[arg(long = "as", value_enum, default_value_t = Shape::Auto)]
    shape: Shape,
    /// The queue a command stands on.
    #[arg(long, value_enum, default_value_t = Queue::Admin)]
    queue: Queue,
    /// One JSON object a line instead of text.
    #[arg(short, long, value_enum, default_value_t = Format::Normal)]
    output_format: Format,
}

#[derive(Clone, Copy, Eq, PartialEq, ValueEnum)]
enum Shape {
    /// 16 bytes are a response, an MPA frame begins a stream, and anything else is what it can be.
    Auto,
    /// A command capsule: 64 bytes, and in-capsule data.
    Command,
    /// A response capsule: 16 bytes.
    Response,
    /// One direction of an iWARP connection.
    Stream,
}

#[derive(Clone, Copy, ValueEnum)]
enum Queue {
    Admin,
    Io,
}

#[derive(Clone, Copy, Eq, PartialEq, ValueEnum)]
enum Format {
    Normal,
    Json,
}

/// One line of output.
#[derive(Debug, Eq, PartialEq, Serialize)]
pub(crate) struct Line {
    #[serde(skip)]
    at: Duration,
    /// Seconds since the capture began.
    #[serde(skip_serializing_if = "Option::is_none")]
    time: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    from: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    to: Option<String>,
    /// What carried it: `MPA`, `Send`, `RDMA Write`, …
    layer: &'static str,
    text: String,
}

impl Line {
    fn new(layer: &'static str, text: String) -> Self {
        Self { at: Duration::ZERO, time: None, from: None, to: None, layer, text }
    }

    /// Of a capture.
    fn between(self, at: Duration, from: &impl ToString, to: &impl ToString) -> Self {
        let time = Some(format!("{:.6}", at.as_secs_f64()));
        Self { at, time, from: Some(from.to_string()), to: Some(to.to_string()), ..self }
    }

    /// Whether it says more than that something is no message.
    fn is_a_message(&self) -> bool {
        self.layer != "stream"
    }
}

impl Decode {
    pub(crate) fn run(self) -> anyhow::Result<()> {
        let mut bytes = Vec::new();
        if self.input.as_os_str() == "-" {
            io::stdin().read_to_end(&mut bytes).context("standard input")?;
        } else {
            bytes = fs::read(&self.input).with_context(|| self.input.display().to_string())?;
        }
        let (lines, nothing) = if capture::is_capture(&bytes) {
            let capture = capture::read(&bytes)?;
            let lines = lines_of(&capture);
            let nothing = !lines.iter().any(Line::is_a_message);
            (lines, nothing.then(|| format!("no NVMe/RDMA in {}", capture.summary())))
        } else {
            (self.hexadecimal(&hex_bytes(&bytes)?)?, None)
        };
        self.print(&lines)?;
        nothing.map_or(Ok(()), |found| bail!("{found}; a capture has to begin before the connection does"))
    }

    fn print(&self, lines: &[Line]) -> anyhow::Result<()> {
        let mut out = io::BufWriter::new(io::stdout().lock());
        for line in lines {
            match self.output_format {
                Format::Json => writeln!(out, "{}", serde_json::to_string(line)?),
                Format::Normal => writeln!(out, "{}", text(line)),
            }
            .or_else(enough)?;
        }
        Ok(out.flush().or_else(enough)?)
    }

    fn hexadecimal(&self, bytes: &[u8]) -> anyhow::Result<Vec<Line>> {
        let queue = match self.queue {
            Queue::Admin => QueueKind::Admin,
            Queue::Io => QueueKind::Io,
        };
        let shape = match self.shape {
            Shape::Auto if bytes.len() == 16 => Shape::Response,
            Shape::Auto if direction::looks_like_stream(bytes) => Shape::Stream,
            Shape::Auto => Shape::Command,
            shape => shape,
        };
        let line = match shape {
            Shape::Stream => return Ok(direction::lines_of_stream(bytes, queue)),
            Shape::Response => capsule::response(bytes),
            _ => capsule::command(bytes, queue),
        };
        let Some(line) = line else { bail!("{} bytes are too few for a capsule", bytes.len()) };
        Ok(vec![Line::new("capsule", line)])
    }
}

/// A reader such as `head` has seen enough.
fn enough(error: io::Error) -> io::Result<()> {
    if error.kind() == io::ErrorKind::BrokenPipe { Ok(()) } else { Err(error) }
}

/// Everything a capture carried, in the order of time.
fn lines_of(capture: &capture::Capture) -> Vec<Line> {
    let mut lines = conversation::lines(&capture.segments);
    lines.extend(roce::lines(&capture.roce));
    lines.sort_by_key(|line| line.at);
    lines
}

fn text(line: &Line) -> String {
    let mut text = String::new();
    if let Some(time) = &line.time {
        text.push_str(&format!("{time:>11} "));
    }
    if let (Some(from), Some(to)) = (&line.from, &line.to) {
        text.push_str(&format!("{from} > {to} "));
    }
    text.push_str(line.layer);
    text.push_str(": ");
    text.push_str(&line.text);
    text
}

/// Hexadecimal digits in any grouping: blanks, colons and commas between them do not matter, nor does `0x`.
fn hex_bytes(text: &[u8]) -> anyhow::Result<Vec<u8>> {
    let Ok(text) = std::str::from_utf8(text) else { bail!("neither a capture nor hexadecimal text") };
    let mut digits = Vec::new();
    for word in text.split(|c: char| c.is_whitespace() || c == ':' || c == ',') {
        for digit in word.strip_prefix("0x").unwrap_or(word).chars() {
            let Some(digit) = digit.to_digit(16) else {
                bail!("neither a capture nor hexadecimal: {word:?}")
            };
            digits.push(u8::try_from(digit).expect("a hexadecimal digit is less than 16"));
        }
    }
    if !digits.len().is_multiple_of(2) {
        bail!("an odd number of hexadecimal digits");
    }
    Ok(digits.chunks_exact(2).map(|pair| pair[0] << 4 | pair[1]).collect())
}

//! As much of HTTP/1.1 as it takes to be asked for one text (RFC 9112): one request a connection, and nothing of its body.

/// Bytes of a request up to the empty line.
const HEAD_BYTES_MAX: usize = 16 << 10;

/// What comes of a request.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(super) enum Answer {
    Metrics,
    Other(Vec<u8>),
}

/// A request as it comes.
#[derive(Debug, Default)]
pub(super) struct Head {
    bytes: Vec<u8>,
}

impl Head {
    /// Takes what has come; gives what is to be answered once the head is whole, or can be none.
    pub(super) fn push(&mut self, bytes: &[u8]) -> Option<Answer> {
        // The end may begin in what was there.
        let from = self.bytes.len().saturating_sub(3);
        self.bytes.extend_from_slice(bytes);
        let tail = &self.bytes[from..];
        let is_whole =
            tail.windows(4).any(|four| four == b"\r\n\r\n") || tail.windows(2).any(|two| two == b"\n\n");
        if is_whole {
            return Some(answer(&self.bytes));
        }
        let is_too_long = self.bytes.len() > HEAD_BYTES_MAX;
        is_too_long.then(|| refusal("431 Request Header Fields Too Large", "the request is too long"))
    }
}

fn answer(head: &[u8]) -> Answer {
    let line = head.split(|&byte| byte == b'\n').next().unwrap_or_default();
    let line = std::str::from_utf8(line).unwrap_or_default().trim_end();
    let mut words = line.split(' ');
    let (Some(method), Some(target), Some(version), None) =
        (words.next(), words.next(), words.next(), words.next())
    else {
        return refusal("400 Bad Request", "this is no HTTP");
    };
    if !version.starts_with("HTTP/1.") {
        return refusal("505 HTTP Version Not Supported", "this is HTTP/1.1");
    }
    let path = target.split('?').next().unwrap_or_default();
    match (method, path) {
        ("GET", "/metrics") => Answer::Metrics,
        ("GET", "/") => Answer::Other(respond("200 OK", "Ironside: what it counts is at /metrics\n")),
        ("GET", _) => refusal("404 Not Found", "there is /metrics"),
        _ => refusal("405 Method Not Allowed", "there is GET"),
    }
}

fn refusal(status: &str, why: &str) -> Answer {
    Answer::Other(respond(status, &format!("{why}\n")))
}

/// The numbers, in the text format of Prometheus 0.0.4.
pub(super) fn metrics(text: &str) -> Vec<u8> {
    respond("200 OK", text)
}

pub(super) fn unavailable() -> Vec<u8> {
    respond("503 Service Unavailable", "the target is ending\n")
}

fn respond(status: &str, body: &str) -> Vec<u8> {
    format!(
        "HTTP/1.1 {status}\r\nContent-Type: text/plain; version=0.0.4; charset=utf-8\r\nContent-Length: {}\r\n\
         X-Content-Type-Options: nosniff\r\nConnection: close\r\n\r\n{body}",
        body.len()
    )
    .into_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ask(text: &str) -> String {
        match Head::default().push(text.as_bytes()) {
            None => "more".into(),
            Some(Answer::Metrics) => "metrics".into(),
            Some(Answer::Other(answer)) => {
                String::from_utf8(answer).unwrap().lines().next().unwrap()[9..12].into()
            }
        }
    }

    #[test]
    fn requests_are_answered_and_nonsense_refused() {
        for (text, answer) in [
            ("GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n", "metrics"),
            ("GET /metrics?a=b HTTP/1.0\n\n", "metrics"),
            ("GET / HTTP/1.1\r\n\r\n", "200"),
            ("GET /x HTTP/1.1\r\n\r\n", "404"),
            ("POST /metrics HTTP/1.1\r\n\r\n", "405"),
            ("GET /metrics HTTP/2\r\n\r\n", "505"),
            ("\r\n\r\n", "400"),
            ("GET  /metrics HTTP/1.1\r\n\r\n", "400"),
            ("GET /metrics HTTP/1.1\r\n", "more"),
        ] {
            assert_eq!(ask(text), answer, "{text:?}");
        }
        assert_eq!(ask(&"x".repeat(HEAD_BYTES_MAX + 1)), "431");
        let mut slow = Head::default();
        let text = b"GET /metrics HTTP/1.1\r\n\r\n";
        let found: Vec<_> = text.iter().map(|byte| slow.push(&[*byte])).collect();
        assert_eq!(found.iter().flatten().count(), 1);
        assert_eq!(found.last().unwrap(), &Some(Answer::Metrics));
    }
}

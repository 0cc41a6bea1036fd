//! Where one request ends and the next begins: JSON texts follow each other without anything between them. A machine of bytes; each
//! is looked at once, however slowly they come.

/// Bytes of a request, or of several sent as one.
pub const REQUEST_BYTES_MAX: usize = 1 << 20;

/// Why nothing more can be read of a client.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
pub enum FrameError {
    #[error("a request is a JSON object, or a list of them")]
    NoRequest,
    #[error("it is too large: a request has {REQUEST_BYTES_MAX} bytes at most")]
    TooLarge,
}

/// Bytes of a client, cut into requests.
#[derive(Debug)]
pub struct Framer {
    bytes: Vec<u8>,
    most: usize,
    /// Where the request which comes next begins.
    start: usize,
    /// How many of the bytes have been looked at.
    seen: usize,
    depth: usize,
    in_string: bool,
    escaped: bool,
}

impl Default for Framer {
    fn default() -> Self {
        Self::with_limit(REQUEST_BYTES_MAX)
    }
}

impl Framer {
    /// For texts of fewer bytes than `most`.
    pub const fn with_limit(most: usize) -> Self {
        Self { bytes: Vec::new(), most, start: 0, seen: 0, depth: 0, in_string: false, escaped: false }
    }

    /// Adds what has come. Take the whole requests first: what is kept is no more than one begun, and a piece.
    pub fn push(&mut self, bytes: &[u8]) {
        self.bytes.drain(..self.start);
        self.seen -= self.start;
        self.start = 0;
        self.bytes.extend_from_slice(bytes);
    }

    /// Whether something has come that is no whole request yet.
    pub fn is_partial(&self) -> bool {
        self.start < self.bytes.len()
    }

    /// The next whole request, as far as its brackets tell.
    ///
    /// # Errors
    /// If what comes is no request.
    pub fn take(&mut self) -> Result<Option<Vec<u8>>, FrameError> {
        while let Some(&byte) = self.bytes.get(self.seen) {
            self.seen += 1;
            if self.depth == 0 && byte.is_ascii_whitespace() {
                self.start = self.seen;
                continue;
            }
            if self.look_at(byte)? {
                let request = self.bytes[self.start..self.seen].to_vec();
                self.start = self.seen;
                return Ok(Some(request));
            }
            if self.seen - self.start >= self.most {
                return Err(FrameError::TooLarge);
            }
        }
        if self.start == self.bytes.len() {
            // A client which once sent something large does not keep that much.
            (self.bytes, self.start, self.seen) = (Vec::new(), 0, 0);
        }
        Ok(None)
    }

    /// Whether a request ends with this byte.
    fn look_at(&mut self, byte: u8) -> Result<bool, FrameError> {
        match byte {
            _ if self.escaped => self.escaped = false,
            b'\\' if self.in_string => self.escaped = true,
            b'"' if self.depth > 0 => self.in_string = !self.in_string,
            _ if self.in_string => {}
            b'{' | b'[' => self.depth += 1,
            b'}' | b']' if self.depth > 0 => {
                self.depth -= 1;
                return Ok(self.depth == 0);
            }
            _ if self.depth == 0 => return Err(FrameError::NoRequest),
            _ => {}
        }
        Ok(false)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all(framer: &mut Framer) -> Vec<String> {
        std::iter::from_fn(|| framer.take().unwrap()).map(|one| String::from_utf8(one).unwrap()).collect()
    }

    #[test]
    fn requests_are_told_apart_wherever_they_are_cut() {
        let texts = [r#"{"a":"}\"]\\"}"#, r#"[{"b":[1,{}]},{}]"#, "{}"];
        let stream = format!(" {}\n{}{} ", texts[0], texts[1], texts[2]);
        for step in 1..stream.len() {
            let mut framer = Framer::default();
            let mut found = Vec::new();
            for part in stream.as_bytes().chunks(step) {
                framer.push(part);
                found.extend(all(&mut framer));
            }
            assert_eq!(found, texts, "by {step} bytes");
            assert!(!framer.is_partial());
        }
    }

    #[test]
    fn what_is_no_request_is_refused_at_its_first_byte() {
        for text in ["5", "\"a\"", "x", "]", "{}7"] {
            let mut framer = Framer::default();
            framer.push(text.as_bytes());
            let ended = std::iter::repeat_with(|| framer.take()).find(|one| !matches!(one, Ok(Some(_))));
            assert_eq!(ended, Some(Err(FrameError::NoRequest)), "{text}");
        }
        let mut endless = Framer::default();
        endless.push(&vec![b'['; REQUEST_BYTES_MAX]);
        assert_eq!(endless.take(), Err(FrameError::TooLarge));
    }
}

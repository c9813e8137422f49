//! What a child process has said, line by line, the last ten thousand lines of it.
//!
//! Each stream is read by a thread of its own, so a child is never blocked on a full pipe by a busy test.

use std::{
    collections::VecDeque,
    fmt,
    io::{BufRead, BufReader, Read},
    sync::{Arc, Mutex, MutexGuard},
    thread,
};

/// Enough for any test's questions, and a bound for a child that never stops talking.
const KEPT: usize = 10_000;

/// One line of a child's output.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Line {
    /// Where it stands among all lines of the child, both streams together, from 0.
    pub number: u64,
    pub stream: Stream,
    pub text: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stream {
    Stdout,
    Stderr,
}

impl fmt::Display for Line {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let stream = match self.stream {
            Stream::Stdout => "out",
            Stream::Stderr => "err",
        };
        write!(f, "{stream} | {}", self.text)
    }
}

#[derive(Clone, Debug, Default)]
pub(super) struct Output(Arc<Mutex<Ring>>);

#[derive(Debug, Default)]
struct Ring {
    lines: VecDeque<Line>,
    said: u64,
    open_streams: u8,
}

impl Output {
    /// Keeps what `source` says from now on, until its end.
    pub(super) fn capture(&self, stream: Stream, source: impl Read + Send + 'static) {
        self.lock().open_streams += 1;
        let output = self.clone();
        thread::spawn(move || {
            for line in BufReader::new(source).split(b'\n').map_while(Result::ok) {
                output.lock().push(stream, &line);
            }
            output.lock().open_streams -= 1;
        });
    }

    /// How many lines there have been.
    pub(super) fn said(&self) -> u64 {
        self.lock().said
    }

    /// Whether no line can come any more.
    pub(super) fn has_ended(&self) -> bool {
        self.lock().open_streams == 0
    }

    pub(super) fn lines(&self) -> Vec<Line> {
        self.lock().lines.iter().cloned().collect()
    }

    /// The first line from `number` on that `matches`.
    pub(super) fn find(&self, number: u64, matches: impl Fn(&str) -> bool) -> Option<Line> {
        self.lock().lines.iter().find(|line| line.number >= number && matches(&line.text)).cloned()
    }

    pub(super) fn tail(&self, count: usize) -> Vec<Line> {
        let ring = self.lock();
        ring.lines.range(ring.lines.len().saturating_sub(count)..).cloned().collect()
    }

    fn lock(&self) -> MutexGuard<'_, Ring> {
        self.0.lock().expect("no one panics while holding the output")
    }
}

impl Ring {
    fn push(&mut self, stream: Stream, line: &[u8]) {
        if self.lines.len() == KEPT {
            self.lines.pop_front();
        }
        let text = String::from_utf8_lossy(line).trim_end_matches('\r').to_owned();
        self.lines.push_back(Line { number: self.said, stream, text });
        self.said += 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_ring_keeps_the_last_lines_under_their_own_numbers() {
        let mut ring = Ring::default();
        for n in 0..KEPT + 5 {
            ring.push(Stream::Stdout, n.to_string().as_bytes());
        }
        assert_eq!(ring.lines.len(), KEPT);
        let oldest = ring.lines.front().expect("the ring is full");
        assert_eq!((oldest.number, oldest.text.as_str()), (5, "5"));
        assert_eq!(ring.said, KEPT as u64 + 5);
    }

    #[test]
    fn a_line_that_is_not_text_is_kept_as_far_as_it_is() {
        let mut ring = Ring::default();
        ring.push(Stream::Stderr, b"half \xff a line\r");
        assert_eq!(ring.lines[0].to_string(), "err | half \u{fffd} a line");
    }
}

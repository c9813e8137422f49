//! The captured output of a child process: its last ten thousand lines.
//!
//! A thread per stream reads it, so that a busy test never blocks a child on a full pipe.

use std::{
    collections::VecDeque,
    fmt,
    io::{BufRead, BufReader, Read},
    sync::{Arc, Mutex, MutexGuard},
    thread,
    time::Instant,
};

/// Enough for any test, and a bound for a child that logs without end.
const KEPT: usize = 10_000;

/// One line of a child's output.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OutputLine {
    /// Its number among all lines of both streams, from 0.
    pub number: u64,
    pub stream: OutputStream,
    pub text: String,
    /// When it was read.
    pub at: Instant,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OutputStream {
    Stdout,
    Stderr,
}

impl fmt::Display for OutputLine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let stream = match self.stream {
            OutputStream::Stdout => "out",
            OutputStream::Stderr => "err",
        };
        write!(f, "{stream} | {}", self.text)
    }
}

#[derive(Clone, Debug, Default)]
pub(super) struct CapturedOutput(Arc<Mutex<LineBuffer>>);

#[derive(Debug, Default)]
struct LineBuffer {
    lines: VecDeque<OutputLine>,
    line_count: u64,
    open_streams: u8,
}

impl CapturedOutput {
    /// Captures `source` until its end.
    pub(super) fn capture(&self, stream: OutputStream, source: impl Read + Send + 'static) {
        self.lock().open_streams += 1;
        let output = self.clone();
        thread::spawn(move || {
            for line in BufReader::new(source).split(b'\n').map_while(Result::ok) {
                output.lock().push(stream, &line);
            }
            output.lock().open_streams -= 1;
        });
    }

    /// Lines captured so far, including those that were dropped again.
    pub(super) fn line_count(&self) -> u64 {
        self.lock().line_count
    }

    /// Whether both streams have ended.
    pub(super) fn has_ended(&self) -> bool {
        self.lock().open_streams == 0
    }

    pub(super) fn lines(&self) -> Vec<OutputLine> {
        self.lock().lines.iter().cloned().collect()
    }

    /// The first line from `number` on that `matches`.
    pub(super) fn find(&self, number: u64, matches: impl Fn(&str) -> bool) -> Option<OutputLine> {
        self.lock().lines.iter().find(|line| line.number >= number && matches(&line.text)).cloned()
    }

    pub(super) fn tail(&self, count: usize) -> Vec<OutputLine> {
        let buffer = self.lock();
        buffer.lines.range(buffer.lines.len().saturating_sub(count)..).cloned().collect()
    }

    fn lock(&self) -> MutexGuard<'_, LineBuffer> {
        self.0.lock().expect("no one panics while holding the output")
    }
}

impl LineBuffer {
    fn push(&mut self, stream: OutputStream, line: &[u8]) {
        if self.lines.len() == KEPT {
            self.lines.pop_front();
        }
        let text = String::from_utf8_lossy(line).trim_end_matches('\r').to_owned();
        self.lines.push_back(OutputLine { number: self.line_count, stream, text, at: Instant::now() });
        self.line_count += 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_buffer_keeps_the_last_lines_with_their_numbers() {
        let mut buffer = LineBuffer::default();
        for n in 0..KEPT + 5 {
            buffer.push(OutputStream::Stdout, n.to_string().as_bytes());
        }
        assert_eq!(buffer.lines.len(), KEPT);
        let oldest = buffer.lines.front().expect("the buffer is full");
        assert_eq!((oldest.number, oldest.text.as_str()), (5, "5"));
        assert_eq!(buffer.line_count, KEPT as u64 + 5);
    }

    #[test]
    fn a_line_that_is_not_utf8_is_kept_lossily() {
        let mut buffer = LineBuffer::default();
        buffer.push(OutputStream::Stderr, b"half \xff a line\r");
        assert_eq!(buffer.lines[0].to_string(), "err | half \u{fffd} a line");
    }
}

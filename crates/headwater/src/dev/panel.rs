//! What a person sees: lines that stay, and on a terminal one below them that is written anew.

use std::io::{IsTerminal, Write};

use tokio::time::Instant;

pub(super) struct Panel {
    terminal: bool,
    /// A status line is on the screen, and the cursor at its end.
    open: bool,
}

impl Default for Panel {
    fn default() -> Self {
        Self { terminal: std::io::stdout().is_terminal(), open: false }
    }
}

impl Panel {
    pub(super) fn say(&mut self, line: &str) {
        self.clear();
        println!("{line}");
    }

    pub(super) fn step(&mut self, what: &str, began: Instant) {
        self.say(&format!("{what} is up ({:.1} s)", began.elapsed().as_secs_f64()));
    }

    pub(super) fn status(&mut self, line: &str) {
        self.clear();
        if self.terminal {
            // A line that is too long is cut by the terminal, not wrapped: a wrapped one could not be cleared.
            print!("\x1b[?7l{line}\x1b[?7h");
            self.open = true;
        } else {
            println!("{line}");
        }
        // A screen that cannot be written is nobody's loss.
        let _ = std::io::stdout().flush();
    }

    fn clear(&mut self) {
        if std::mem::take(&mut self.open) {
            print!("\r\x1b[2K");
        }
    }
}

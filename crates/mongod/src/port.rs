//! A port that stays reserved while its server is down.
//!
//! A killed member must come back on its own port. So ports lie outside the range for outgoing connections, and a lock file keeps
//! other processes of this user from choosing the same port.

use std::fs::{self, File};
use std::io;
use std::net::{Ipv4Addr, TcpListener};

/// Below the ephemeral ranges of Linux (32768) and macOS (49152), above the well-known services.
const RANGE: std::ops::Range<u16> = 20_000..32_000;
const TRIES: usize = 200;

#[derive(Debug)]
pub struct ReservedPort {
    number: u16,
    _lock: File,
}

impl ReservedPort {
    /// Reserves the wanted port, or a free one.
    pub fn reserve(wanted: Option<u16>) -> io::Result<Self> {
        if let Some(number) = wanted {
            return Self::take(number);
        }
        let mut last = io::Error::from(io::ErrorKind::AddrInUse);
        for _ in 0..TRIES {
            match Self::take(rand::random_range(RANGE)) {
                Ok(port) => return Ok(port),
                Err(error) => last = error,
            }
        }
        Err(last)
    }

    pub fn number(&self) -> u16 {
        self.number
    }

    fn take(number: u16) -> io::Result<Self> {
        let folder = std::env::temp_dir().join(format!("headwater-ports-{}", nix::unistd::getuid()));
        fs::create_dir_all(&folder)?;
        let lock = File::options().create(true).append(true).open(folder.join(number.to_string()))?;
        lock.try_lock()?;
        // The lock covers our own processes; the bind finds everyone else. The listener closes at once.
        TcpListener::bind((Ipv4Addr::LOCALHOST, number))?;
        Ok(Self { number, _lock: lock })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reserved_port_cannot_be_reserved_until_it_is_released() {
        let port = ReservedPort::reserve(None).unwrap();
        ReservedPort::reserve(Some(port.number())).unwrap_err();
        let number = port.number();
        drop(port);
        ReservedPort::reserve(Some(number)).unwrap();
    }

    #[test]
    fn a_port_in_use_is_not_reserved() {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        ReservedPort::reserve(Some(listener.local_addr().unwrap().port())).unwrap_err();
    }
}

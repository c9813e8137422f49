//! A port that stays ours while its server is down.
//!
//! A killed member must come back on its own port, so ports lie outside the range the system hands to outgoing
//! connections, and a lock file keeps other processes of this user from choosing the same one meanwhile.

use std::fs::{self, File};
use std::io;
use std::net::{Ipv4Addr, TcpListener};

/// Below the ephemeral ranges of Linux (32768) and macOS (49152), above the well-known services.
const RANGE: std::ops::Range<u16> = 20_000..32_000;
const TRIES: usize = 200;

#[derive(Debug)]
pub struct Port {
    number: u16,
    _lock: File,
}

impl Port {
    /// The wanted port, or a free one.
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
        TcpListener::bind((Ipv4Addr::LOCALHOST, number))?;
        Ok(Self { number, _lock: lock })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reserved_port_cannot_be_reserved_again_until_it_is_given_back() {
        let port = Port::reserve(None).unwrap();
        Port::reserve(Some(port.number())).unwrap_err();
        let number = port.number();
        drop(port);
        Port::reserve(Some(number)).unwrap();
    }

    #[test]
    fn a_port_someone_listens_on_is_not_reserved() {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        Port::reserve(Some(listener.local_addr().unwrap().port())).unwrap_err();
    }
}

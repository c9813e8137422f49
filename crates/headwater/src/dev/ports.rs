//! The ports of `headwater dev`: memorable ones where they are free, or random ones for tests that run in parallel.

use std::fs;
use std::io;
use std::path::Path;

use mongod::ReservedPort;

/// How many ports above the first are tried.
const RANGE: u16 = 200;

/// How to choose ports.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum PortMode {
    /// Dashboards from 8080, the broker from 5672, MongoDB from 27017; the next free port where one is taken
    Stable,
    /// Any free ports
    Random,
}

/// The ports that one process may use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PortRange {
    /// From this one upwards.
    From(u16),
    Random,
}

impl PortMode {
    pub(super) fn dashboard(self) -> PortRange {
        self.range(8080)
    }

    pub(super) fn broker(self) -> PortRange {
        self.range(5672)
    }

    pub(super) fn mongodb(self) -> PortRange {
        self.range(27017)
    }

    fn range(self, first: u16) -> PortRange {
        match self {
            Self::Stable => PortRange::From(first),
            Self::Random => PortRange::Random,
        }
    }
}

impl PortRange {
    /// Reserves the port of the last run if it is free and in the range, else the first free one.
    pub(super) fn reserve(self, last: Option<u16>) -> io::Result<ReservedPort> {
        if let Some(port) =
            last.filter(|last| self.contains(*last)).and_then(|last| ReservedPort::reserve(Some(last)).ok())
        {
            return Ok(port);
        }
        match self {
            Self::Random => ReservedPort::reserve(None),
            Self::From(first) => {
                let free = (first..first + RANGE).find_map(|port| ReservedPort::reserve(Some(port)).ok());
                free.ok_or_else(|| {
                    io::Error::other(format!(
                        "all ports from {first} to {} are taken; pass --ports random",
                        first + RANGE - 1
                    ))
                })
            }
        }
    }

    fn contains(self, port: u16) -> bool {
        match self {
            Self::Random => true,
            Self::From(first) => (first..first + RANGE).contains(&port),
        }
    }
}

/// The port that an earlier run wrote into this file.
pub(super) fn last_port(file: &Path) -> Option<u16> {
    fs::read_to_string(file).ok()?.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use std::net::{Ipv4Addr, TcpListener};

    use super::*;

    /// A port that another process listens on, with free ones above it.
    fn taken_port() -> (u16, TcpListener) {
        let first = ReservedPort::reserve(None).unwrap().number();
        (first, TcpListener::bind((Ipv4Addr::LOCALHOST, first)).unwrap())
    }

    #[test]
    fn a_taken_port_is_skipped() {
        let (first, _listener) = taken_port();
        let port = PortRange::From(first).reserve(None).unwrap().number();
        assert!(port > first && port < first + RANGE, "{port} after {first}");
    }

    #[test]
    fn the_port_of_the_last_run_is_kept_if_it_is_in_range() {
        let first = ReservedPort::reserve(None).unwrap().number();
        let range = PortRange::From(first);
        let last = PortRange::From(first + 1).reserve(None).unwrap().number();
        assert_eq!(range.reserve(Some(last)).unwrap().number(), last);
        // An older version remembered random ports.
        assert_ne!(range.reserve(Some(first + RANGE)).unwrap().number(), first + RANGE);
        let (taken, _listener) = taken_port();
        assert_ne!(PortRange::Random.reserve(Some(taken)).unwrap().number(), taken);
    }
}

//! The `Host` header of a request. A page in a developer's browser can make a name of its own resolve to 127.0.0.1 (DNS
//! rebinding) and so reach a broker that listens on loopback only. The browser then sends that name as `Host`.

use std::net::{Ipv4Addr, Ipv6Addr};

use hyper::StatusCode;
use hyper::header::{HOST, HeaderMap, ORIGIN};

use super::response::HttpError;

/// Refuses a request whose host is not a name of the loopback interface. Only browsers are dangerous here, and they always
/// send the header.
pub(super) fn check_loopback(headers: &HeaderMap) -> Result<(), HttpError> {
    match headers.get(HOST).map(|host| host.to_str().ok().is_some_and(is_loopback)) {
        None | Some(true) => Ok(()),
        Some(false) => Err(HttpError::new(
            StatusCode::FORBIDDEN,
            "the broker listens on loopback only: use `localhost` or a loopback address as the host",
        )),
    }
}

/// Whether a request comes from a page on this machine, or from no page at all. Only browsers send the header.
pub(super) fn has_local_origin(headers: &HeaderMap) -> bool {
    let Some(origin) = headers.get(ORIGIN) else { return true };
    let host = origin.to_str().ok().and_then(|origin| origin.split_once("://"));
    host.is_some_and(|(_, host)| is_loopback(host))
}

fn is_loopback(host: &str) -> bool {
    let name = match host.strip_prefix('[') {
        Some(rest) => rest.split(']').next().unwrap_or_default(),
        None => host.rsplit_once(':').map_or(host, |(name, _)| name),
    };
    let name = name.to_ascii_lowercase();
    name == "localhost"
        || name.ends_with(".localhost")
        || name.parse::<Ipv4Addr>().is_ok_and(|address| address.is_loopback())
        || name.parse::<Ipv6Addr>().is_ok_and(|address| address.is_loopback())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_of_another_host_has_no_local_origin() {
        let from = |origin: &str| {
            let mut headers = HeaderMap::new();
            headers.insert(ORIGIN, origin.parse().expect("a header value"));
            has_local_origin(&headers)
        };
        assert!(has_local_origin(&HeaderMap::new()) && from("http://localhost:3000") && from("http://127.0.0.1:5672"));
        assert!(!from("https://evil.example") && !from("null") && !from("http://localhost.evil.example"));
    }

    #[test]
    fn only_names_of_the_loopback_interface_pass() {
        for host in ["localhost", "LOCALHOST:5672", "127.0.0.1:5672", "127.1.2.3", "[::1]:80", "[::1]", "b.localhost:1"]
        {
            assert!(is_loopback(host), "{host}");
        }
        for host in
            ["evil.example", "evil.example:5672", "127.0.0.1.evil.example", "localhost.evil.example", "", "10.0.0.1"]
        {
            assert!(!is_loopback(host), "{host}");
        }
    }
}

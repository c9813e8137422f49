//! The `Host` that a request may name.
//!
//! A page of another site cannot read this server, unless its own name resolves to 127.0.0.1 (DNS rebinding): the browser then takes both
//! for one site. Such a request names the other site, so a server on loopback answers only to local names and to those that are configured.

use std::net::{IpAddr, SocketAddr};

use hyper::Request;
use hyper::header::HOST;
use hyper::http::uri::Authority;

#[derive(Clone, Debug)]
pub(crate) enum AllowedHosts {
    /// Others reach it by names that the server cannot know.
    Any,
    /// Local names, and these.
    Local(Vec<String>),
}

impl AllowedHosts {
    pub(crate) fn of_listener(address: SocketAddr, names: Vec<String>) -> Self {
        match address.ip().is_loopback() || !names.is_empty() {
            true => Self::Local(names),
            false => Self::Any,
        }
    }

    pub(crate) fn accept<B>(&self, request: &Request<B>) -> bool {
        let Self::Local(names) = self else { return true };
        let header = request.headers().get(HOST).and_then(|host| host.to_str().ok()?.parse::<Authority>().ok());
        // A second name in the request line must be as good as the first.
        let mut named = request.uri().authority().cloned().into_iter().chain(header.clone());
        header.is_some() && named.all(|name| is_local(name.host()) || is_listed(name.host(), names))
    }
}

fn is_local(host: &str) -> bool {
    let bare = host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host);
    host.eq_ignore_ascii_case("localhost") || bare.parse::<IpAddr>().is_ok_and(|address| address.is_loopback())
}

fn is_listed(host: &str, names: &[String]) -> bool {
    names.iter().any(|name| name.eq_ignore_ascii_case(host))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn accepted(hosts: &AllowedHosts, host: &str) -> bool {
        hosts.accept(&Request::builder().uri("/").header(HOST, host).body(()).unwrap())
    }

    #[test]
    fn loopback_answers_to_local_and_configured_names() {
        let local = AllowedHosts::of_listener("127.0.0.1:8080".parse().unwrap(), vec!["pods.example".into()]);
        for host in ["localhost", "LOCALHOST:8080", "127.0.0.1:1", "127.9.9.9", "[::1]:8080", "pods.example:443"] {
            assert!(accepted(&local, host), "{host}");
        }
        for host in ["evil.example", "localhost.evil.example", "127.0.0.1.evil.example", "10.0.0.1", "", "a b", "::1"] {
            assert!(!accepted(&local, host), "{host}");
        }
        assert!(!local.accept(&Request::builder().uri("/").body(()).unwrap()), "no host");
        let two = Request::builder().uri("http://evil.example/").header(HOST, "localhost").body(()).unwrap();
        assert!(!local.accept(&two));
    }

    #[test]
    fn other_listeners_answer_to_any_name_or_the_configured() {
        let open = AllowedHosts::of_listener("0.0.0.0:8080".parse().unwrap(), vec![]);
        assert!(accepted(&open, "pod-0.headwater"));
        let named = AllowedHosts::of_listener("0.0.0.0:8080".parse().unwrap(), vec!["pods.example".into()]);
        assert!(accepted(&named, "pods.example") && !accepted(&named, "evil.example"));
    }
}

//! HTTP proxies: which one an address needs, by `HTTPS_PROXY` and `NO_PROXY`, and the tunnel through it (`CONNECT`).
//!
//! Used for HTTPS and for AMQP over WebSocket. AMQP on its own port never uses a proxy, as in the SDKs.

use std::fmt;
use std::io;
use std::net::IpAddr;

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

/// A proxy replies with a status line and a few headers.
const MAX_HEAD: usize = 16 << 10;

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{variable}` is not `http://[user:password@]host:port`")]
pub struct Error {
    pub variable: &'static str,
}

/// The proxy, and the hosts that are reached without it. The default is no proxy.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ProxySettings {
    proxy: Option<Proxy>,
    bypass: Vec<Bypass>,
}

#[derive(Clone, PartialEq, Eq)]
struct Proxy {
    authority: String,
    /// The value of `Proxy-Authorization`.
    credential: Option<String>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Bypass {
    All,
    /// A name and everything below it, in lower case.
    Domain(String),
    Network(IpAddr, u8),
}

impl fmt::Debug for Proxy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.authority)
    }
}

impl ProxySettings {
    /// Reads `HTTPS_PROXY` and `NO_PROXY`, in upper or lower case.
    pub fn from_environment(variable: impl Fn(&str) -> Option<String>) -> Result<Self, Error> {
        let read = |upper: &str, lower: &str| {
            let set = |name| variable(name).filter(|text| !text.trim().is_empty());
            set(lower).or_else(|| set(upper))
        };
        let proxy = read("HTTPS_PROXY", "https_proxy").map(|text| Proxy::parse(text.trim())).transpose()?;
        let bypass = read("NO_PROXY", "no_proxy").unwrap_or_default();
        Ok(Self { proxy, bypass: bypass.split(',').filter_map(|rule| Bypass::parse(rule.trim())).collect() })
    }

    fn proxy_for(&self, host: &str) -> Option<&Proxy> {
        self.proxy.as_ref().filter(|_| !self.bypass.iter().any(|rule| rule.covers(host)))
    }

    /// A connection to an address, through the proxy if it needs one.
    pub(crate) async fn connect(&self, authority: &str) -> io::Result<TcpStream> {
        let host = authority.rsplit_once(':').map_or(authority, |(host, _)| host).trim_matches(['[', ']']);
        match self.proxy_for(host) {
            None => TcpStream::connect(authority).await,
            Some(proxy) => proxy.tunnel(authority).await,
        }
    }
}

impl Proxy {
    fn parse(text: &str) -> Result<Self, Error> {
        let invalid = || Error { variable: "HTTPS_PROXY" };
        let rest = match text.split_once("://") {
            Some(("http", rest)) => rest,
            Some(_) => return Err(invalid()),
            None => text,
        };
        let rest = rest.trim_end_matches('/');
        let (credential, authority) = rest.rsplit_once('@').map_or((None, rest), |(user, rest)| (Some(user), rest));
        let has_port =
            authority.rsplit_once(':').is_some_and(|(host, port)| !host.is_empty() && port.parse::<u16>().is_ok());
        if !has_port || authority.contains(['/', ' ', '\r', '\n']) {
            return Err(invalid());
        }
        let credential = credential.map(|user| percent_decode(user).ok_or_else(invalid)).transpose()?;
        let credential = credential.map(|user| format!("Basic {}", BASE64_STANDARD.encode(user)));
        Ok(Self { authority: authority.to_owned(), credential })
    }

    async fn tunnel(&self, authority: &str) -> io::Result<TcpStream> {
        let failed = |what: String| io::Error::other(format!("proxy `{}`: {what}", self.authority));
        let mut stream = TcpStream::connect(&self.authority)
            .await
            .map_err(|error| failed(format!("TCP connect failed: {error}")))?;
        let credential =
            self.credential.as_ref().map_or(String::new(), |value| format!("Proxy-Authorization: {value}\r\n"));
        let request = format!("CONNECT {authority} HTTP/1.1\r\nHost: {authority}\r\n{credential}\r\n");
        stream.write_all(request.as_bytes()).await?;
        match read_status(&mut stream).await.map_err(|error| failed(error.to_string()))? {
            200 => Ok(stream),
            407 => Err(failed("it refuses the user and password (status 407); check `HTTPS_PROXY`".to_owned())),
            status => Err(failed(format!("it refuses a connection to `{authority}` (status {status})"))),
        }
    }
}

/// The status of a proxy's reply to `CONNECT`. Public for fuzzing.
#[doc(hidden)]
pub async fn read_status(stream: &mut (impl AsyncRead + Unpin)) -> io::Result<u16> {
    let head = read_head(stream).await?;
    let mut words = head.split_whitespace();
    let is_http = words.next().is_some_and(|version| version.starts_with("HTTP/1."));
    let status = words.next().and_then(|status| status.parse().ok());
    status.filter(|_| is_http).ok_or_else(|| io::Error::other("its reply is not HTTP"))
}

/// Byte by byte: what follows the head belongs to the peer behind the proxy.
async fn read_head(stream: &mut (impl AsyncRead + Unpin)) -> io::Result<String> {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        if head.len() >= MAX_HEAD {
            return Err(io::Error::other("its reply is too long"));
        }
        head.push(stream.read_u8().await?);
    }
    String::from_utf8(head).map_err(|_| io::Error::other("its reply is not HTTP"))
}

impl Bypass {
    /// `None` for a rule that is empty.
    fn parse(text: &str) -> Option<Self> {
        if text == "*" {
            return Some(Self::All);
        }
        let (network, length) = text.split_once('/').map_or((text, None), |(network, length)| (network, Some(length)));
        if let Ok(address) = network.trim_matches(['[', ']']).parse::<IpAddr>() {
            let whole = if address.is_ipv4() { 32 } else { 128 };
            return Some(Self::Network(address, length.map_or(Some(whole), |length| length.parse().ok())?.min(whole)));
        }
        let name = text.rsplit_once(':').map_or(text, |(name, _)| name);
        let name = name.trim_start_matches("*.").trim_start_matches('.').to_lowercase();
        (!name.is_empty()).then_some(Self::Domain(name))
    }

    fn covers(&self, host: &str) -> bool {
        match self {
            Self::All => true,
            Self::Domain(name) => {
                let host = host.to_lowercase();
                host.strip_suffix(name.as_str()).is_some_and(|before| before.is_empty() || before.ends_with('.'))
            }
            Self::Network(network, length) => {
                host.parse::<IpAddr>().is_ok_and(|host| is_in_network(host, *network, *length))
            }
        }
    }
}

fn is_in_network(host: IpAddr, network: IpAddr, length: u8) -> bool {
    match (host, network) {
        (IpAddr::V4(host), IpAddr::V4(network)) => {
            let mask = u32::MAX.checked_shl(32 - u32::from(length)).unwrap_or(0);
            u32::from(host) & mask == u32::from(network) & mask
        }
        (IpAddr::V6(host), IpAddr::V6(network)) => {
            let mask = u128::MAX.checked_shl(128 - u32::from(length)).unwrap_or(0);
            u128::from(host) & mask == u128::from(network) & mask
        }
        (IpAddr::V4(_), IpAddr::V6(_)) | (IpAddr::V6(_), IpAddr::V4(_)) => false,
    }
}

fn percent_decode(text: &str) -> Option<String> {
    let mut parts = text.split('%');
    let mut bytes = parts.next()?.as_bytes().to_vec();
    for part in parts {
        bytes.push(u8::from_str_radix(part.get(..2)?, 16).ok()?);
        bytes.extend_from_slice(&part.as_bytes()[2..]);
    }
    String::from_utf8(bytes).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settings(proxy: &str, bypass: &str) -> Result<ProxySettings, Error> {
        ProxySettings::from_environment(|name| match name {
            "HTTPS_PROXY" => Some(proxy.to_owned()),
            "no_proxy" => Some(bypass.to_owned()),
            _ => None,
        })
    }

    #[test]
    fn a_proxy_is_read_and_its_password_is_never_shown() {
        let read = settings("http://us%40er:hush@proxy.corp:3128/", "").unwrap();
        let proxy = read.proxy.as_ref().unwrap();
        assert_eq!(proxy.authority, "proxy.corp:3128");
        assert_eq!(proxy.credential.as_deref(), Some("Basic dXNAZXI6aHVzaA=="));
        assert!(!format!("{read:?}").contains("hush") && !format!("{read:?}").contains("Basic"));
        assert_eq!(settings("", "").unwrap(), ProxySettings::default());
        for invalid in ["https://proxy:3128", "http://proxy", "http://:1", "socks5://proxy:1", "http://a b:1"] {
            let error = settings(invalid, "").unwrap_err().to_string();
            assert!(error.contains("HTTPS_PROXY") && !error.contains("proxy:3128"), "{error}");
        }
    }

    #[tokio::test]
    async fn only_a_status_line_is_an_answer_of_a_proxy() {
        let long = format!("HTTP/1.1 200 {}", "a".repeat(MAX_HEAD));
        for (reply, expected) in [
            ("HTTP/1.1 200 Connection established\r\n\r\nrest", Some(200)),
            ("HTTP/1.0 407 No\r\nx: y\r\n\r\n", Some(407)),
            ("HTTP/1.1 2000000 x\r\n\r\n", None),
            ("HTTP/1.1 -200\r\n\r\n", None),
            ("SSH-2.0 200 x\r\n\r\n", None),
            ("HTTP/1.1 200 cut off", None),
            ("\r\n\r\n", None),
            (&long, None),
        ] {
            let read = read_status(&mut reply.as_bytes()).await;
            assert_eq!(read.ok(), expected, "{:.40}", reply);
        }
    }

    #[test]
    fn hosts_of_no_proxy_are_reached_directly() {
        let read = settings("proxy:1", "localhost, .corp,10.0.0.0/8,169.254.169.254,fd00::/8,*.svc:443,,x/y").unwrap();
        for direct in ["localhost", "a.b.CORP", "corp", "10.1.2.3", "169.254.169.254", "fd12::1", "a.svc"] {
            assert_eq!(read.proxy_for(direct), None, "{direct}");
        }
        for proxied in ["ns.servicebus.windows.net", "notcorp", "11.0.0.1", "169.254.169.253", "fe80::1"] {
            assert!(read.proxy_for(proxied).is_some(), "{proxied}");
        }
        assert_eq!(settings("proxy:1", "*").unwrap().proxy_for("any"), None);
    }
}

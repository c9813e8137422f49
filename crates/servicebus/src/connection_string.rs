//! Parses connection strings as the SDKs do. Secrets never appear in `Debug` output or errors.

use std::fmt;
use std::sync::Arc;

use crate::Transport;
use crate::entra::TokenSource;

/// Where the namespace is, and how to authenticate.
#[derive(Clone, PartialEq, Eq)]
pub struct ConnectionString {
    /// Without the port; used for the TLS server name and for tokens.
    pub host: Arc<str>,
    pub port: u16,
    /// `UseDevelopmentEmulator=true`: plain TCP instead of TLS.
    pub emulator: bool,
    pub entity_path: Option<String>,
    pub credential: Credential,
}

#[derive(Clone)]
pub enum Credential {
    /// A key that signs tokens.
    Key { name: String, key: String },
    /// A token that was signed elsewhere, used as is.
    Signature(String),
    /// Tokens of Entra ID.
    Entra(Arc<TokenSource>),
    /// No token is sent.
    None,
}

impl PartialEq for Credential {
    fn eq(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Key { name, key }, Self::Key { name: other_name, key: other_key }) => {
                (name, key) == (other_name, other_key)
            }
            (Self::Signature(one), Self::Signature(other)) => one == other,
            (Self::Entra(one), Self::Entra(other)) => Arc::ptr_eq(one, other),
            (Self::None, Self::None) => true,
            (Self::Key { .. } | Self::Signature(_) | Self::Entra(_) | Self::None, _) => false,
        }
    }
}

impl Eq for Credential {}

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    #[error("`Endpoint` is missing")]
    NoEndpoint,
    #[error("`Endpoint` is not `sb://host[:port]/`")]
    Endpoint,
    #[error("the namespace is not `host[:port]`")]
    Namespace,
    #[error("part {0} is not of the form `Name=value`")]
    InvalidPart(usize),
    #[error("`{0}` is given twice")]
    Duplicate(&'static str),
    #[error("`SharedAccessKeyName` and `SharedAccessKey` go together")]
    IncompleteKey,
    #[error("`SharedAccessKey` and `SharedAccessSignature` exclude each other")]
    TwoCredentials,
}

const TLS_PORT: u16 = 5671;
const PLAIN_PORT: u16 = 5672;

impl ConnectionString {
    /// Names are case-insensitive. Unknown names are ignored, as in the SDKs.
    pub fn parse(text: &str) -> Result<Self, Error> {
        let parts = ConnectionStringParts::read(text)?;
        let emulator = parts.emulator.as_deref() == Some("true");
        let (host, port) = endpoint(parts.endpoint.as_deref().ok_or(Error::NoEndpoint)?)?;
        let credential = match (parts.key_name, parts.key, parts.signature) {
            (Some(name), Some(key), None) => Credential::Key { name, key },
            (None, None, Some(signature)) => Credential::Signature(signature),
            (None, None, None) => Credential::None,
            (Some(_), None, _) | (None, Some(_), _) => return Err(Error::IncompleteKey),
            (Some(_), Some(_), Some(_)) => return Err(Error::TwoCredentials),
        };
        let default_port = if emulator { PLAIN_PORT } else { TLS_PORT };
        let entity_path = parts.entity_path.filter(|path| !path.is_empty());
        Ok(Self { host: host.into(), port: port.unwrap_or(default_port), emulator, entity_path, credential })
    }

    /// A namespace by its host name, such as `shop.servicebus.windows.net`, with tokens of Entra ID. Always TLS.
    pub fn for_namespace(name: &str, tokens: Arc<TokenSource>) -> Result<Self, Error> {
        let (host, port) = check_namespace(name)?;
        let credential = Credential::Entra(tokens);
        let port = port.unwrap_or(TLS_PORT);
        Ok(Self { host: host.into(), port, emulator: false, entity_path: None, credential })
    }

    /// `host:port`, with brackets around an IPv6 address.
    pub fn authority(&self) -> String {
        self.authority_with(self.port)
    }

    /// The address to connect to. WebSockets use port 443 where AMQP over TLS would use its own.
    pub fn authority_for(&self, transport: Transport) -> String {
        match transport {
            Transport::WebSocket if self.port == TLS_PORT => self.authority_with(443),
            Transport::WebSocket | Transport::Amqp => self.authority(),
        }
    }

    fn authority_with(&self, port: u16) -> String {
        if self.host.contains(':') { format!("[{}]:{port}", self.host) } else { format!("{}:{port}", self.host) }
    }
}

#[derive(Default)]
struct ConnectionStringParts {
    endpoint: Option<String>,
    key_name: Option<String>,
    key: Option<String>,
    signature: Option<String>,
    entity_path: Option<String>,
    emulator: Option<String>,
}

impl ConnectionStringParts {
    fn read(text: &str) -> Result<Self, Error> {
        let mut parts = Self::default();
        for (index, part) in text.split(';').map(str::trim).enumerate().filter(|(_, part)| !part.is_empty()) {
            let (name, value) = part.split_once('=').ok_or(Error::InvalidPart(index + 1))?;
            let (slot, known): (&mut Option<String>, _) = match name.trim().to_ascii_lowercase().as_str() {
                "endpoint" => (&mut parts.endpoint, "Endpoint"),
                "sharedaccesskeyname" => (&mut parts.key_name, "SharedAccessKeyName"),
                "sharedaccesskey" => (&mut parts.key, "SharedAccessKey"),
                "sharedaccesssignature" => (&mut parts.signature, "SharedAccessSignature"),
                "entitypath" => (&mut parts.entity_path, "EntityPath"),
                "usedevelopmentemulator" => (&mut parts.emulator, "UseDevelopmentEmulator"),
                _ => continue,
            };
            if slot.replace(value.trim().to_owned()).is_some() {
                return Err(Error::Duplicate(known));
            }
        }
        Ok(parts)
    }
}

/// The host and port of a namespace that is given by name.
pub fn check_namespace(name: &str) -> Result<(&str, Option<u16>), Error> {
    if name.contains(['/', ';', '=']) {
        return Err(Error::Namespace);
    }
    authority(name).map_err(|_| Error::Namespace)
}

fn endpoint(text: &str) -> Result<(&str, Option<u16>), Error> {
    let (scheme, rest) = text.split_once("://").ok_or(Error::Endpoint)?;
    if !["sb", "amqp", "amqps"].contains(&scheme) {
        return Err(Error::Endpoint);
    }
    authority(rest.split('/').next().unwrap_or_default())
}

fn authority(authority: &str) -> Result<(&str, Option<u16>), Error> {
    let (host, port) = match authority.strip_prefix('[') {
        // An IPv6 address contains colons itself.
        Some(bracketed) => {
            let (host, after) = bracketed.split_once(']').ok_or(Error::Endpoint)?;
            (host, after.strip_prefix(':'))
        }
        None => authority.split_once(':').map_or((authority, None), |(host, port)| (host, Some(port))),
    };
    let port = port.map(|port| port.parse().map_err(|_| Error::Endpoint)).transpose()?;
    // A missing `;` makes the key a part of the host, which is logged.
    let is_host = |letter: char| letter.is_ascii_alphanumeric() || ".-_:%".contains(letter);
    if host.is_empty() || !host.chars().all(is_host) { Err(Error::Endpoint) } else { Ok((host, port)) }
}

impl std::str::FromStr for ConnectionString {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        Self::parse(text)
    }
}

impl fmt::Debug for ConnectionString {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ConnectionString")
            .field("host", &self.host)
            .field("port", &self.port)
            .field("emulator", &self.emulator)
            .field("entity_path", &self.entity_path)
            .field("credential", &self.credential)
            .finish()
    }
}

impl fmt::Debug for Credential {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Key { name, .. } => write!(f, "Key({name}, ***)"),
            Self::Signature(_) => f.write_str("Signature(***)"),
            Self::Entra(tokens) => write!(f, "Entra({})", tokens.issuer()),
            Self::None => f.write_str("None"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(text: &str) -> ConnectionString {
        ConnectionString::parse(text).unwrap()
    }

    #[test]
    fn the_string_from_the_portal_is_read() {
        let read = parsed(
            "Endpoint=sb://ns.servicebus.windows.net/;SharedAccessKeyName=Root;SharedAccessKey=c2VjcmV0PT0=;EntityPath=orders",
        );
        assert_eq!((&*read.host, read.port, read.emulator), ("ns.servicebus.windows.net", 5671, false));
        assert_eq!(read.entity_path.as_deref(), Some("orders"));
        // A key may contain equals signs.
        assert_eq!(read.credential, Credential::Key { name: "Root".into(), key: "c2VjcmV0PT0=".into() });
    }

    #[test]
    fn the_emulator_is_plain_tcp_and_a_port_is_honoured() {
        let emulator = "SharedAccessKeyName=R;SharedAccessKey=K;UseDevelopmentEmulator=true;";
        let default = parsed(&format!("Endpoint=sb://localhost;{emulator}"));
        assert_eq!((default.port, default.emulator), (5672, true));
        assert_eq!(parsed(&format!("Endpoint=sb://127.0.0.1:7001;{emulator}")).authority(), "127.0.0.1:7001");
        assert_eq!(parsed(&format!("Endpoint=sb://[::1]:7001/;{emulator}")).authority(), "[::1]:7001");
        let untrue = parsed("Endpoint=sb://localhost;UseDevelopmentEmulator=True");
        assert!(!untrue.emulator, "literally `true`, as the SDKs have it");
    }

    #[test]
    fn a_signature_takes_the_place_of_a_key() {
        let read = parsed("endpoint=sb://ns/;sharedaccesssignature=SharedAccessSignature sr=a&sig=b&se=1&skn=c");
        assert_eq!(read.credential, Credential::Signature("SharedAccessSignature sr=a&sig=b&se=1&skn=c".into()));
    }

    #[test]
    fn errors_never_contain_the_secret() {
        for (text, error) in [
            ("", Error::NoEndpoint),
            ("SharedAccessKey=hush", Error::NoEndpoint),
            ("Endpoint=http://x", Error::Endpoint),
            ("Endpoint=sb://", Error::Endpoint),
            ("Endpoint=sb://x:port", Error::Endpoint),
            ("Endpoint=sb://xSharedAccessKeyName=a,SharedAccessKey=hush", Error::Endpoint),
            ("Endpoint=sb://x;hush", Error::InvalidPart(2)),
            ("Endpoint=sb://x;Endpoint=sb://y", Error::Duplicate("Endpoint")),
            ("Endpoint=sb://x;SharedAccessKey=hush", Error::IncompleteKey),
            (
                "Endpoint=sb://x;SharedAccessKeyName=a;SharedAccessKey=hush;SharedAccessSignature=hush",
                Error::TwoCredentials,
            ),
        ] {
            let found = ConnectionString::parse(text).unwrap_err();
            assert_eq!(found, error, "{text}");
            assert!(!format!("{found} {found:?}").contains("hush"));
        }
        let good = parsed("Endpoint=sb://x;SharedAccessKeyName=a;SharedAccessKey=hush");
        assert!(!format!("{good:?}").contains("hush"));
    }
}

//! The HTTPS server of the issuer.

use std::collections::HashMap;
use std::io;
use std::sync::Arc;

use local_cluster::BrokerCertificate;
use tokio::io::{AsyncBufReadExt, AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, BufReader};
use tokio::net::TcpListener;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio_rustls::rustls::{ServerConfig, crypto};

use super::{AUDIENCE, CLIENT, IDENTITY_HEADER, IssuerState, TENANT};

pub(super) fn acceptor(files: &BrokerCertificate) -> TlsAcceptor {
    let chain = CertificateDer::pem_file_iter(&files.certificate).expect("a certificate");
    let chain = chain.collect::<Result<Vec<_>, _>>().expect("a certificate");
    let key = PrivateKeyDer::from_pem_file(&files.private_key).expect("a key");
    let config = ServerConfig::builder_with_provider(Arc::new(crypto::ring::default_provider()))
        .with_safe_default_protocol_versions()
        .and_then(|config| config.with_no_client_auth().with_single_cert(chain, key))
        .expect("the files belong together");
    TlsAcceptor::from(Arc::new(config))
}

pub(super) async fn serve(listener: TcpListener, acceptor: TlsAcceptor, state: Arc<IssuerState>) {
    while let Ok((stream, _)) = listener.accept().await {
        let (acceptor, state) = (acceptor.clone(), Arc::clone(&state));
        tokio::spawn(async move {
            state.count_request();
            // An issuer that is away ends the connection without a reply.
            if state.behaviour().away {
                return;
            }
            if let Ok(stream) = acceptor.accept(stream).await {
                let _ = answer(stream, &state).await;
            }
        });
    }
}

async fn answer<S: AsyncRead + AsyncWrite + Unpin>(stream: S, state: &IssuerState) -> io::Result<()> {
    let mut stream = BufReader::new(stream);
    let mut target = String::new();
    stream.read_line(&mut target).await?;
    let mut headers = HashMap::new();
    loop {
        let mut line = String::new();
        stream.read_line(&mut line).await?;
        let Some((name, value)) = line.split_once(':') else { break };
        headers.insert(name.to_ascii_lowercase(), value.trim().to_owned());
    }
    let length = headers.get("content-length").and_then(|value| value.parse().ok()).unwrap_or(0);
    let mut body = vec![0; length];
    stream.read_exact(&mut body).await?;
    let (status, reply) = match managed_identity(&target, &headers) {
        Some(true) => ("200 OK", state.issue()),
        Some(false) => ("400 Bad Request", r#"{"error":"invalid_request"}"#.to_owned()),
        None => reply(&target, &String::from_utf8_lossy(&body), state),
    };
    let head =
        format!("HTTP/1.1 {status}\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n", reply.len());
    stream.write_all(head.as_bytes()).await?;
    stream.write_all(reply.as_bytes()).await?;
    stream.shutdown().await
}

/// The endpoints of a virtual machine and of App Service: whether the request is right. `None`: another request.
fn managed_identity(target: &str, headers: &HashMap<String, String>) -> Option<bool> {
    let query = format!("&resource=https%3A%2F%2Fservicebus.azure.net&client_id={CLIENT} ");
    let has = |name: &str, value: &str| headers.get(name).is_some_and(|found| found == value);
    let asks = |path: &str| target.strip_prefix(path).map(|rest| rest.starts_with(&query));
    if let Some(complete) = asks("GET /metadata/identity/oauth2/token?api-version=2018-02-01") {
        return Some(complete && has("metadata", "true"));
    }
    let complete = asks("GET /msi/token?api-version=2019-08-01")?;
    Some(complete && has("x-identity-header", IDENTITY_HEADER))
}

fn reply(target: &str, body: &str, state: &IssuerState) -> (&'static str, String) {
    let refuse = |code: &str, text: &str| {
        ("401 Unauthorized", format!(r#"{{"error":"{code}","error_description":"{text}\r\nTrace ID: 0"}}"#))
    };
    if !target.starts_with(&format!("POST /{TENANT}/oauth2/v2.0/token ")) {
        return ("404 Not Found", String::new());
    }
    let fields: HashMap<_, _> = body.split('&').filter_map(|field| field.split_once('=')).collect();
    let field = |name: &str| fields.get(name).map(|value| decode(value)).unwrap_or_default();
    let behaviour = state.behaviour().clone();
    if field("grant_type") != "client_credentials"
        || field("client_id") != CLIENT
        || field("scope") != format!("{AUDIENCE}/.default")
    {
        return refuse("invalid_request", "the request is not one for client credentials");
    }
    let assertion = field("client_assertion");
    let is_signed = behaviour.certificate.as_ref().is_some_and(|certificate| certificate.has_signed(&assertion));
    if field("client_secret") == behaviour.secret || assertion == behaviour.federated_token || is_signed {
        return ("200 OK", state.issue());
    }
    match assertion.is_empty() {
        true => refuse("invalid_client", "AADSTS7000215: Invalid client secret provided."),
        false => refuse("invalid_client", "AADSTS700027: The certificate or token of the client is not registered."),
    }
}

fn decode(text: &str) -> String {
    let mut bytes = Vec::new();
    let mut rest = text.as_bytes();
    while let Some((byte, tail)) = rest.split_first() {
        rest = tail;
        match (byte, tail) {
            (b'%', [high, low, tail @ ..]) => {
                let digits = [*high, *low];
                let digits = std::str::from_utf8(&digits).unwrap_or("00");
                bytes.push(u8::from_str_radix(digits, 16).unwrap_or(0));
                rest = tail;
            }
            (byte, _) => bytes.push(*byte),
        }
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

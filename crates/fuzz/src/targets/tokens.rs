//! Tokens, and the replies of those who issue or forward them.

use std::sync::LazyLock;

use base64::Engine;
use base64::prelude::BASE64_URL_SAFE_NO_PAD;
use broker::access::{AccessKeys, EntraIssuer};
use broker::core::Timestamp;

const NOW: Timestamp = Timestamp(1_700_000_000_000);

pub(super) const TOKEN_WORDS: &[&[u8]] = &[
    b"\"alg\":\"RS256\"",
    b"\"alg\":\"none\"",
    b"\"kid\":\"k\"",
    b"\"exp\":18446744073709551615",
    b"\"roles\":[\"pods\"]",
    b"[[[[[[[[",
    b"\n",
    b"SharedAccessSignature ",
    b"&sig=",
    b"&se=99999999999999999999",
    b"&skn=root",
    b"%zz",
    b"%ff",
];

/// An issuer with a key that signs nothing, and a shared key.
static KEYS: LazyLock<AccessKeys> = LazyLock::new(|| {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let (modulus, file) = (BASE64_URL_SAFE_NO_PAD.encode([0xc5; 256]), folder.path().join("issuer.json"));
    let keys = format!(r#"{{"keys":[{{"kty":"RSA","kid":"k","n":"{modulus}","e":"AQAB"}}]}}"#);
    std::fs::write(folder.path().join("keys.json"), keys).expect("a file");
    let issuer = r#"{"issuer":"https://i","jwks":"keys.json","assignments":[{"principal":"pods","rights":["Send"]}]}"#;
    std::fs::write(&file, issuer).expect("a file");
    let keys = AccessKeys::parse(r#"{"keys":[{"name":"root","key":"secret","rights":["Send"]}]}"#).expect("keys");
    keys.with_entra(EntraIssuer::load(&file).expect("an issuer"))
});

/// Header, claims and signature of a JWT in three lines, or a shared access signature.
pub(super) fn tokens() -> Vec<Vec<u8>> {
    let claims = r#"{"iss":"https://i","aud":"https://servicebus.azure.net","exp":1700000600,"nbf":1699999000,"oid":"pods","roles":["pods"]}"#;
    vec![
        format!("{{\"alg\":\"RS256\",\"kid\":\"k\"}}\n{claims}\nsignature").into_bytes(),
        format!("{{\"alg\":\"none\"}}\n{claims}\n").into_bytes(),
        b"SharedAccessSignature sr=sb%3A%2F%2Fns%2Forders&sig=B6KXkSnbT%2B7IKQ6hHTuDK06fBngbDPY6rshMJy6fBlc%3D&se=1700000600&skn=root".to_vec(),
        b"eyJ9.eyJ9.AAAA".to_vec(),
    ]
}

/// As it is, and as the lines of a JWT. Nothing here has a signature of the issuer, so no JWT may be accepted.
pub(super) fn verify_token(data: &[u8]) {
    let parts: Vec<_> = data.splitn(3, |byte| *byte == b'\n').map(|part| BASE64_URL_SAFE_NO_PAD.encode(part)).collect();
    assert!(!KEYS.accepts(&parts.join("."), "orders", NOW), "a JWT without a signature is accepted");
    if let Ok(text) = std::str::from_utf8(data) {
        let _ = KEYS.accepts(text, "orders", NOW);
    }
}

pub(super) const REPLY_WORDS: &[&[u8]] = &[
    b"\"access_token\":\"t\"",
    b"\"expires_in\":18446744073709551615",
    b"\"expires_on\":\"-1\"",
    b"\"refresh_in\":1e999",
    b"\"error\":{\"code\":\"c\",\"message\":\"m\"}",
    b"\\u0000",
    b"\\r\\n",
    b"[[[[[[[[",
];

pub(super) fn replies() -> Vec<Vec<u8>> {
    let replies = [
        r#"{"token_type":"Bearer","expires_in":3599,"access_token":"t"}"#,
        r#"{"access_token":"t","expires_in":"86400","refresh_in":"43200","expires_on":"1800000000"}"#,
        r#"{"accessToken":"t","expiresOn":"2026-01-01 00:00:00","expires_on":1800000000}"#,
        r#"{"error":"invalid_client","error_description":"AADSTS7000215: Invalid client secret.\r\nTrace ID: 1"}"#,
    ];
    replies.map(|reply| reply.as_bytes().to_vec()).to_vec()
}

pub(super) fn read_reply(data: &[u8]) {
    servicebus::entra::read_reply(data);
}

pub(super) const PROXY_WORDS: &[&[u8]] = &[
    b"HTTP/1.1 ",
    b"200",
    b"407",
    b"99999999999",
    b"\r\n",
    b"\r\n\r\n",
    b"\0",
    b"\xff",
    b" ",
    b"content-length: 5\r\n",
];

pub(super) fn proxy_replies() -> Vec<Vec<u8>> {
    let replies = [
        "HTTP/1.1 200 Connection established\r\n\r\nrest",
        "HTTP/1.1 407 Proxy Authentication Required\r\nproxy-authenticate: Basic\r\ncontent-length: 0\r\n\r\n",
    ];
    replies.map(|reply| reply.as_bytes().to_vec()).to_vec()
}

pub(super) fn read_proxy_reply(mut data: &[u8]) {
    static RUNTIME: LazyLock<tokio::runtime::Runtime> =
        LazyLock::new(|| tokio::runtime::Builder::new_current_thread().build().expect("a runtime"));
    let _ = RUNTIME.block_on(servicebus::read_proxy_status(&mut data));
}

//! Tokens for a broker that has keys and an issuer of JWTs.

use base64::Engine;
use base64::prelude::BASE64_URL_SAFE_NO_PAD;

use crate::exchange::{http, send_all};
use crate::processes::{broker_memory, start_broker_with};
use crate::table::HostileTable;

#[tokio::test]
async fn hostile_tokens_do_not_harm_the_broker() {
    let folder = tempfile::tempdir().unwrap();
    let write = |name: &str, text: &str| {
        let file = folder.path().join(name);
        std::fs::write(&file, text).unwrap();
        file.display().to_string()
    };
    let keys = write("keys.json", r#"{"keys": [{"name": "root", "key": "secret", "rights": ["Manage"]}]}"#);
    let modulus = BASE64_URL_SAFE_NO_PAD.encode([0xc5; 256]);
    write("jwks.json", &format!(r#"{{"keys": [{{"kty": "RSA", "kid": "k", "n": "{modulus}", "e": "AQAB"}}]}}"#));
    let issuer =
        r#"{"issuer": "https://i", "jwks": "jwks.json", "assignments": [{"principal": "pods", "rights": ["Manage"]}]}"#;
    let arguments = ["--keys".to_owned(), keys, "--entra".to_owned(), write("entra.json", issuer)];
    let broker = start_broker_with(folder.path(), arguments.to_vec()).await;
    let mut table = HostileTable::new("tokens");
    send_all(&mut table, broker.address(), "/health", inputs()).await;
    table.finish(&broker_memory(&broker));
}

fn request(token: &str) -> Vec<u8> {
    http(&format!("GET /q HTTP/1.1\nhost: localhost\nconnection: close\nauthorization: {token}\n\n"))
}

fn jwt(header: &str, claims: &str, signature: &[u8]) -> String {
    let [header, claims, signature] =
        [header.as_bytes(), claims.as_bytes(), signature].map(|part| BASE64_URL_SAFE_NO_PAD.encode(part));
    format!("Bearer {header}.{claims}.{signature}")
}

fn inputs() -> Vec<(String, Vec<u8>)> {
    const HEADER: &str = r#"{"alg":"RS256","kid":"k"}"#;
    const CLAIMS: &str = r#"{"iss":"https://i","aud":"https://servicebus.azure.net","exp":4102444800,"oid":"pods"}"#;
    let signature = [0xa5; 256];
    let mut inputs: Vec<(String, String)> = vec![
        ("no token".into(), String::new()),
        ("JWT with a false signature".into(), jwt(HEADER, CLAIMS, &signature)),
        ("JWT without a signature".into(), jwt(HEADER, CLAIMS, b"")),
        ("JWT with a signature of 8 KB".into(), jwt(HEADER, CLAIMS, &[1; 8 << 10])),
        ("JWT over 16 KiB".into(), jwt(HEADER, CLAIMS, &[1; 13 << 10])),
        ("JWT of 60 KB".into(), jwt(HEADER, CLAIMS, &[1; 45_000])),
        ("JWT of dots".into(), format!("Bearer {}", ".".repeat(10_000))),
        ("JWT of two dots".into(), "Bearer ..".into()),
        ("JWT that is not base64".into(), "Bearer !.!.!".into()),
        ("JWT that is not JSON".into(), jwt("}{", "][", &signature)),
        ("JWT that is not UTF-8".into(), format!("Bearer {}.e30.AA", BASE64_URL_SAFE_NO_PAD.encode([0xff; 9]))),
        ("JWT 5,000 levels deep".into(), jwt(HEADER, &"[".repeat(5_000), &signature)),
        ("JWT header 5,000 levels deep".into(), jwt(&"{\"a\":".repeat(2_000), CLAIMS, &signature)),
        (
            "JWT with an expiry of 2^64".into(),
            jwt(HEADER, &CLAIMS.replace("4102444800", "18446744073709551616"), &signature),
        ),
    ];
    for alg in ["none", "HS256", "RS512", "rs256", ""] {
        let header = format!(r#"{{"alg":"{alg}","kid":"k"}}"#);
        inputs.push((format!("JWT with the algorithm `{alg}`"), jwt(&header, CLAIMS, &signature)));
    }
    // The secret of HMAC would be the public key.
    inputs.push((
        "JWT with a key of its own".into(),
        jwt(r#"{"alg":"RS256","jwk":{"kty":"RSA"},"kid":"x"}"#, CLAIMS, &signature),
    ));
    for (name, token) in [
        ("nothing in it", "SharedAccessSignature "),
        ("a false signature", "SharedAccessSignature sr=q&sig=AAAA&se=4102444800&skn=root"),
        ("an unknown key", "SharedAccessSignature sr=q&sig=AAAA&se=4102444800&skn=nobody"),
        ("an expiry of 20 digits", "SharedAccessSignature sr=q&sig=AAAA&se=99999999999999999999&skn=root"),
        ("a broken percent sign", "SharedAccessSignature sr=%&sig=%2&se=1&skn=%zz"),
        ("a NUL", "SharedAccessSignature sr=%00&sig=AAAA&se=1&skn=%00"),
        ("every field twice", "SharedAccessSignature sr=q&sr=q&sig=A&sig=B&se=1&se=2&skn=a&skn=b"),
    ] {
        inputs.push((format!("SAS with {name}"), token.to_owned()));
    }
    inputs.push((
        "SAS of 60 KB".into(),
        format!("SharedAccessSignature sr={}&sig=AAAA&se=1&skn=root", "a".repeat(60_000)),
    ));
    inputs.into_iter().map(|(name, token)| (name, request(&token))).collect()
}

//! Checks the HTTP server: whether the operator token can be overheard.

use std::net::SocketAddr;

use super::CheckFinding;
use crate::config::AdminConfig;

/// A token that crosses a network without TLS is readable for everyone on that network.
pub(super) fn check_configuration(admin: &AdminConfig) -> Option<CheckFinding> {
    let is_readable = admin.token.is_some() && admin.tls.is_none();
    find_problem(admin.listen, is_readable)
}

fn find_problem(listen: Option<SocketAddr>, is_readable: bool) -> Option<CheckFinding> {
    let listen = listen.filter(|address| is_readable && !address.ip().is_loopback())?;
    let problem = format!("listens on {listen}, and clients send the operator token over that network in clear text");
    let fix = "set `admin.certificate_file` and `admin.key_file`, put TLS in front of the pod (ingress or service mesh), or listen on 127.0.0.1 and forward the port";
    Some(CheckFinding::warning("admin", problem, fix))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_sent_in_clear_text_is_reported() {
        let check =
            |listen: &str, has_token| find_problem(listen.parse().ok(), has_token).map(|finding| finding.problem);
        assert!(check("0.0.0.0:8080", true).unwrap().contains("0.0.0.0:8080"));
        assert!(check("[::]:8080", true).is_some());
        for (listen, has_token) in [("0.0.0.0:8080", false), ("127.0.0.1:8080", true), ("[::1]:8080", true), ("", true)]
        {
            assert_eq!(check(listen, has_token), None, "{listen}");
        }
    }
}

//! The HTTP side: who can act through it.

use std::net::SocketAddr;

use super::CheckFinding;

/// A token on a wire that others can listen to is everybody's.
pub(super) fn check_configuration(listen: Option<SocketAddr>, has_token: bool) -> Option<CheckFinding> {
    let listen = listen.filter(|address| has_token && !address.ip().is_loopback())?;
    let problem = format!("listens on {listen}, and `token` goes over that network as it is");
    let fix = "put TLS in front of it (an ingress, a mesh), or listen on 127.0.0.1 and forward the port";
    Some(CheckFinding::warning("admin", problem, fix))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_that_others_could_overhear_is_told() {
        let check = |listen: &str, has_token| {
            check_configuration(listen.parse().ok(), has_token).map(|finding| finding.problem)
        };
        assert!(check("0.0.0.0:8080", true).unwrap().contains("0.0.0.0:8080"));
        assert!(check("[::]:8080", true).is_some());
        for (listen, has_token) in [("0.0.0.0:8080", false), ("127.0.0.1:8080", true), ("[::1]:8080", true), ("", true)]
        {
            assert_eq!(check(listen, has_token), None, "{listen}");
        }
    }
}

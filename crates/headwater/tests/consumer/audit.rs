//! A short `cargo xtask soak audit` with its own seed; and the same without the audit, which must not pass.

use std::path::Path;

use bench::soak::audit_soak::{AuditSoakOptions, run};

use super::BINARY;

#[tokio::test]
async fn read_models_equal_a_fold_after_messages_are_lost() {
    let options = AuditSoakOptions::short(21);
    let result = run(Path::new(BINARY), &options).await.unwrap();
    println!("{result}");
    assert!(result.is_clean(&options) && result.unexpected_exits.is_empty(), "{result}");
    assert_eq!(result.missing(&options), [""; 0], "{result}");
}

#[tokio::test]
async fn without_the_audit_lost_messages_stay_lost() {
    let options = AuditSoakOptions { audit: false, ..AuditSoakOptions::short(21) };
    let result = run(Path::new(BINARY), &options).await.unwrap();
    println!("{result}");
    assert!(!result.differences.is_empty(), "{result}");
}

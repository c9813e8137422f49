//! A short `cargo xtask soak deploys` with its own seed; and the same with pods that ignore generations, which must not pass. And short runs of `soak verify` and `soak rebuild`.

use std::path::Path;

use bench::soak::deploy_soak::{DeploySoakOptions, run};
use bench::soak::{rebuild_soak, verify_soak};
use pipeline::failpoints::Failpoint;

use super::BINARY;

#[tokio::test]
async fn read_models_equal_a_fold_after_rolling_deploys() {
    let options = DeploySoakOptions::short(31);
    let result = run(Path::new(BINARY), &options).await.unwrap();
    println!("{result}");
    assert!(result.is_clean(&options) && result.unexpected_exits.is_empty(), "{result}");
    assert_eq!(result.missing(&options), [""; 0], "{result}");
}

#[tokio::test]
async fn without_the_generation_check_deploys_are_found_out() {
    let seeds = 31..41;
    let mut found = None;
    for seed in seeds.clone() {
        let mut options = DeploySoakOptions::short(seed);
        options.base.failpoint = Some(Failpoint::NoGenerationCheck);
        let result = run(Path::new(BINARY), &options).await.unwrap();
        println!("{result}");
        if !result.differences.is_empty() {
            found = Some(seed);
            break;
        }
    }
    for seed in seeds.start..=found.expect("no seed found the planted defect") {
        let result = run(Path::new(BINARY), &DeploySoakOptions::short(seed)).await.unwrap();
        assert!(result.differences.is_empty(), "seed {seed} without the failpoint: {result}");
    }
}

#[tokio::test]
async fn verify_raises_no_false_alarm_under_load() {
    let options = verify_soak::VerifySoakOptions::short(33);
    let result = verify_soak::run(Path::new(BINARY), &options).await.unwrap();
    println!("{result}");
    assert!(result.is_clean() && result.unexpected_exits.is_empty(), "{result}");
    assert_eq!(result.missing(&options), [""; 0], "{result}");
}

#[tokio::test]
async fn a_rebuild_under_load_equals_a_fold_and_never_hides_documents() {
    let options = rebuild_soak::RebuildSoakOptions::short(34);
    let result = rebuild_soak::run(Path::new(BINARY), &options).await.unwrap();
    println!("{result}");
    assert!(result.is_clean(&options) && result.unexpected_exits.is_empty(), "{result}");
    assert_eq!(result.missing(&options), [""; 0], "{result}");
}

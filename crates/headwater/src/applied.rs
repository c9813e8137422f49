//! Answers about applied events, for the command line and over HTTP.

use pipeline::view::{AppliedState, ModelProgress};

pub(crate) use admin::operator::{AppliedAnswer, AppliedModel, OperationTime};

pub(crate) fn describe(progress: ModelProgress) -> String {
    match progress {
        ModelProgress::Applied => "applied".to_owned(),
        ModelProgress::Parked(reason) => format!("parked: {reason}"),
        ModelProgress::Pending => "pending".to_owned(),
    }
}

pub(crate) fn to_answer(state: &AppliedState) -> AppliedAnswer {
    let model = |progress: &ModelProgress| match progress {
        ModelProgress::Applied => AppliedModel { state: "applied", reason: None },
        ModelProgress::Parked(reason) => AppliedModel { state: "parked", reason: Some(reason.as_str().to_owned()) },
        ModelProgress::Pending => AppliedModel { state: "pending", reason: None },
    };
    let operation_time = state.operation_time.map(|time| OperationTime { t: time.time, i: time.increment });
    AppliedAnswer {
        applied: state.is_applied(),
        parked: state.is_parked(),
        sequence: state.sequence,
        read_models: state.models.iter().map(|(name, progress)| (name.clone(), model(progress))).collect(),
        operation_time,
    }
}

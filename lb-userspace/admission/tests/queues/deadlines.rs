//! How long requests and connections may wait, and which answers they get.

use std::time::Duration;

use lb_admission::deadlines::{QueueWait, REQUEST_QUEUE_WAIT};
use serde::Deserialize;

use crate::vectors;

#[derive(Deserialize)]
struct WaitCase {
    name: String,
    #[serde(rename = "defaultLimit_s")]
    default: u64,
    #[serde(rename = "deadlineFromNow_s")]
    deadline: Option<u64>,
    #[serde(rename = "receivedBeforeNow_s")]
    received_before: u64,
    #[serde(rename = "waitFromNow_s")]
    wait: u64,
}

#[test]
fn waiting_takes_a_quarter_of_the_time_since_arrival() {
    let cases: Vec<WaitCase> = vectors::at("/g_extras/queueWait/cases");
    assert!(!cases.is_empty());
    for case in cases {
        let limits = QueueWait {
            default: Duration::from_secs(case.default),
            ..REQUEST_QUEUE_WAIT
        };
        // Time left at the deadline plus time passed by now make up the whole patience.
        let patience = case
            .deadline
            .map(|deadline| Duration::from_secs(deadline + case.received_before));
        let from_now = limits.limit(patience) - Duration::from_secs(case.received_before);
        assert_eq!(from_now, Duration::from_secs(case.wait), "{}", case.name);
    }
}

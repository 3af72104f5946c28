//! Which tests run in older kernels too, and in those of another architecture.

use anyhow::{Result, ensure};

use crate::{architecture::Architecture, setup::kernels::Series, test::suite::Test};

/// With fewer tests, a kernel would be called good that nobody has looked at.
const LEAST: usize = 30;

/// The tests that run in every kernel for amd64, by the beginnings of their names. There are few
/// with agents, because where a kernel is emulated its verifier is too, and each start of an agent
/// takes long.
const AMD64: [&str; 5] = [
    // Every program loads, is attached (by clsact where there is no tcx), replaced and removed.
    "attach::",
    // What programs do to packets.
    "packets::",
    // Clocks and tables that the agent shares with programs, and sockets that it ends.
    "flow_tables::",
    "udp_sockets::",
    // Agents on two nodes that have all foreign rules.
    "traffic::singly::all_rules_at_once",
];

/// The same for arm64. What does not depend on the architecture is left to amd64.
const ARM64: [&str; 11] = [
    // arm64's just-in-time compiler takes every program.
    "attach::programs::",
    // System calls with structures, and memory that agent and kernel share.
    "attach::cleanup::cgroup_programs_are_replaced_in_their_links",
    "attach::devices::devices_and_addresses_are_followed",
    "attach::devices::the_present_is_known_at_the_start",
    "attach::maps::",
    "attach::pinned::maps_are_adopted",
    // What programs do to packets.
    "packets::conversations::",
    "packets::icmp::errors_for_a_local_pod_cross_the_stack_translated",
    "packets::malformed::headers_that_cannot_be_pass_as_malformed",
    "packets::odd::",
    // Agents on two nodes, real connections, and what is left of the agents.
    "traffic::operation::cleanup_removes_everything",
];

/// The beginnings of the names of tests that run on an architecture, and which of these some kernels
/// do without.
fn selection(architecture: Architecture) -> (&'static [&'static str], &'static [Except]) {
    match architecture {
        Architecture::Amd64 => (&AMD64, &EXCEPT),
        Architecture::Arm64 => (&ARM64, &[]),
    }
}

/// A test of the selection for amd64 that some kernels do without.
struct Except {
    test: &'static str,
    /// Versions of kernels.
    kernels: &'static [&'static str],
    /// Why, in a sentence.
    reason: &'static str,
}

const EXCEPT: [Except; 16] = [
    in_none(
        "packets::oracle::the_kernel_does_what_the_model_says",
        "Its 15,000 packets take minutes where a processor is emulated.",
    ),
    in_none(
        "packets::oracle::the_kernel_does_what_the_model_says_of_packets_never_seen_before",
        "Its 7,500 packets take minutes where a processor is emulated.",
    ),
    in_none(
        "packets::oracle::programs_that_trace_do_what_the_model_says",
        "Its 15,000 packets take minutes where a processor is emulated.",
    ),
    in_none(
        "packets::oracle::the_pipeline_in_memory_does_what_the_model_says",
        "It uses no kernel.",
    ),
    in_none(
        "packets::oracle::nodes_that_break_a_rule_are_found_out",
        "It uses no kernel.",
    ),
    in_none(
        "packets::malformed::packets_of_every_length_are_survived",
        "Its thousands of packets take minutes where a processor is emulated.",
    ),
    in_none(
        "packets::malformed::every_byte_of_the_headers_may_lie",
        "Its thousands of packets take minutes where a processor is emulated.",
    ),
    in_none(
        "packets::processors::the_table_is_whole_after_all_processors_have_worked_on_it",
        "It asserts how many packets processors handle, and emulated ones handle fewer.",
    ),
    in_none(
        "packets::tracing::each_step_of_a_connection_is_logged",
        "It loads programs that trace, which attach::programs does too, and which takes minutes.",
    ),
    in_none(
        "packets::tracing::the_filter_is_applied_in_the_kernel_and_matches_both_directions",
        "It loads programs that trace, which attach::programs does too, and which takes minutes.",
    ),
    in_none(
        "packets::tracing::no_more_packets_are_logged_than_asked_for_nor_for_longer",
        "It loads programs that trace, which attach::programs does too, and which takes minutes.",
    ),
    in_none(
        "packets::world::reuse::programs_go_from_test_to_test_and_what_they_know_does_not",
        "All tests of packets hand on their programs here.",
    ),
    Except {
        test: "attach::links::a_device_made_again_under_its_name_and_index_gets_a_new_link",
        kernels: &["6.1"],
        reason: "It needs tcx, which is there since Linux 6.6.",
    },
    Except {
        test: "attach::links::tcx_runs_first_on_ingress_and_last_on_egress",
        kernels: &["6.1"],
        reason: "It needs tcx, which is there since Linux 6.6.",
    },
    Except {
        test: "attach::links::unwanted_devices_are_swept",
        kernels: &["6.1"],
        reason: "It needs tcx, which is there since Linux 6.6.",
    },
    Except {
        test: "attach::links::native_xdp_is_replaced_under_load_without_loss",
        kernels: &["6.12"],
        reason: "Emulated processors run into code that the kernel is patching \
                 (bpf_dispatcher_xdp_func), and it panics.",
    },
];

const fn in_none(test: &'static str, reason: &'static str) -> Except {
    Except {
        test,
        kernels: &["6.1", "6.12"],
        reason,
    }
}

/// Those of all kernel tests that run in a series of kernels. Says which are left out, and why.
///
/// # Errors
///
/// If a part of the selection or an exception names no test, or only a few tests are left.
pub fn of(series: Series, tests: &[Test]) -> Result<Vec<Test>> {
    let (selection, except) = selection(series.architecture);
    select(series, tests, selection, except, LEAST)
}

fn select(
    series: Series,
    tests: &[Test],
    selection: &[&str],
    except: &[Except],
    least: usize,
) -> Result<Vec<Test>> {
    for beginning in selection {
        ensure!(
            tests.iter().any(|test| test.name().starts_with(beginning)),
            "{beginning:?} is to run in Linux {series}, and no test's name begins so: correct {}",
            file!()
        );
    }
    let is_selected = |name: &str| {
        selection
            .iter()
            .any(|beginning| name.starts_with(beginning))
    };
    for Except { test, .. } in except {
        ensure!(
            is_selected(test) && tests.iter().any(|other| other.name() == *test),
            "{test:?} is not to run in some older kernels, but in none would it: correct {}",
            file!()
        );
    }
    let left_out = |name: &str| {
        let mut except = except.iter();
        except.any(|except| except.test == name && except.kernels.contains(&series.version))
    };
    let mut chosen = tests.to_vec();
    chosen.retain(|test| {
        let name = test.name();
        is_selected(&name) && !left_out(&name) && !test.is_ignored()
    });
    ensure!(
        chosen.len() >= least,
        "only {} tests are to run in Linux {series}, and there must be {least}: correct {}",
        chosen.len(),
        file!()
    );
    Ok(chosen)
}

/// What is left out in a series of kernels, and why.
pub fn left_out(series: Series) -> impl Iterator<Item = (&'static str, &'static str)> {
    let (_, except) = selection(series.architecture);
    except
        .iter()
        .filter(move |except| except.kernels.contains(&series.version))
        .map(|except| (except.test, except.reason))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::setup::kernels::SERIES;

    fn tests() -> Vec<Test> {
        [
            "attach::links::a",
            "attach::links::b",
            "packets::a",
            "traffic::a",
        ]
        .map(Test::named)
        .to_vec()
    }

    fn except(test: &'static str) -> Except {
        Except {
            test,
            kernels: &["6.12"],
            reason: "it is too long.",
        }
    }

    fn names(version: &'static str, selection: &[&str], except: &[Except]) -> Vec<String> {
        let series = Series::amd64(version);
        let chosen = select(series, &tests(), selection, except, 1).unwrap();
        chosen.iter().map(Test::name).collect()
    }

    #[test]
    fn tests_are_chosen_by_the_beginnings_of_their_names() {
        let selection = ["attach::", "packets::"];
        let chosen = names("6.1", &selection, &[]);
        assert_eq!(
            chosen,
            ["attach::links::a", "attach::links::b", "packets::a"]
        );
    }

    #[test]
    fn an_exception_is_of_its_kernels_only() {
        let except = || [except("attach::links::a")];
        let selection = ["attach::"];
        assert_eq!(names("6.1", &selection, &except()).len(), 2);
        assert_eq!(names("6.12", &selection, &except()), ["attach::links::b"]);
    }

    #[test]
    fn what_names_no_test_is_an_error() {
        let error = |selection: &[&str], except: &[Except]| {
            let chosen = select(Series::amd64("6.1"), &tests(), selection, except, 1);
            chosen.unwrap_err().to_string()
        };
        let found = error(&["attach::", "attache::"], &[]);
        assert!(found.contains("\"attache::\""), "{found}");
        // No such test, a part of a name, and a test that is not selected.
        for test in ["attach::links::c", "attach::links::", "traffic::a"] {
            let found = error(&["attach::"], &[except(test)]);
            assert!(found.contains(test), "{found}");
        }
    }

    #[test]
    fn a_few_tests_are_an_error() {
        let found = |except: &[Except], least| {
            let chosen = select(
                Series::amd64("6.12"),
                &tests(),
                &["attach::"],
                except,
                least,
            );
            chosen.map_err(|error| error.to_string())
        };
        assert_eq!(found(&[], 2).unwrap().len(), 2);
        let error = found(&[except("attach::links::a")], 2).unwrap_err();
        assert!(
            error.contains("only 1 tests are to run in Linux 6.12"),
            "{error}"
        );
        let error = select(Series::amd64("6.1"), &tests(), &[], &[], LEAST).unwrap_err();
        assert!(error.to_string().contains("only 0 tests"), "{error}");
    }

    #[test]
    fn exceptions_have_kernels_and_reasons() {
        for except in EXCEPT {
            let known = except
                .kernels
                .iter()
                .all(|version| SERIES.contains(&Series::amd64(version)));
            assert!(known && !except.kernels.is_empty(), "{}", except.test);
            assert!(except.reason.ends_with('.'), "{}", except.test);
        }
    }
}

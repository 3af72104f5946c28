//! What programs may cost the verifier, which gives up after a million instructions.

use std::{collections::BTreeMap, fmt::Write as _};

use nix::sys::utsname::uname;

/// The measured costs, one row per kernel.
const MEASURED: &str = include_str!("verifier-budget.txt");
/// How much more than measured in the same kernel a program may take, in percent: stable kernels
/// get fixes, of the verifier too.
const SLACK: u32 = 10;
/// The same for kernels newer than the newest measured one. From one long-term kernel to the next,
/// the cost of a program has grown by a half or two thirds.
const SLACK_OF_NEWER: u32 = 100;
/// The limit in all other kernels that were not measured: three quarters of what the verifier
/// allows.
const LIMIT_OF_OTHERS: u32 = 750_000;

/// The ending of names of programs that run while the flow tables change their size.
pub const RESIZE: &str = "/resize";
/// Begins names of programs for the time in which packets are traced.
const TRACE: &str = "trace_";
/// What such programs may take where they were not measured: they are attached for a while, and
/// where the verifier refuses them, tables keep their size, or packets are not traced.
const LIMIT_FOR_A_WHILE: u32 = 900_000;

/// Major and minor version.
type Kernel = (u32, u32);
/// Instructions by program.
type Row = BTreeMap<String, u32>;

/// Panics if a program takes more than it may in this kernel. Prints which limits it used if they
/// are not this kernel's own.
pub fn check(found: &Row) {
    let release = uname().unwrap().release().to_string_lossy().into_owned();
    let kernel = version(&release).unwrap_or_else(|| panic!("Linux {release:?}"));
    let rows = rows(MEASURED);
    if !rows.contains_key(&kernel) {
        println!("Linux {release} has no row in verifier-budget.txt; limits are generous here");
    }
    let over: Vec<String> = found
        .iter()
        .filter_map(|(program, instructions)| {
            let limit = limit(&rows, kernel, program);
            let is_over = limit.is_none_or(|limit| *instructions > limit);
            is_over.then(|| format!("{program} takes {instructions}, limit {limit:?}"))
        })
        .collect();
    let row = row(kernel, found);
    assert!(
        over.is_empty(),
        "beyond their budget in Linux {release}: {over:#?}\nIf it is worth it, this is the row for \
         verifier-budget.txt:\n{row}"
    );
    println!("{row}");
}

/// How many instructions a program may take; `None` if a row does not have it.
fn limit(rows: &BTreeMap<Kernel, Row>, kernel: Kernel, program: &str) -> Option<u32> {
    let beyond = |row: &Row, slack| Some(row.get(program)? * (100 + slack) / 100);
    let (newest, newest_row) = rows.last_key_value()?;
    let is_measured = |row: &Row| row.contains_key(program) || !is_for_a_while(program);
    match rows.get(&kernel) {
        Some(row) if !is_measured(row) => Some(LIMIT_FOR_A_WHILE),
        Some(row) => beyond(row, SLACK),
        None if kernel > *newest => beyond(newest_row, SLACK_OF_NEWER),
        None if is_for_a_while(program) => Some(LIMIT_FOR_A_WHILE),
        None => Some(LIMIT_OF_OTHERS),
    }
}

/// Whether a program only takes another one's place for some time.
fn is_for_a_while(program: &str) -> bool {
    program.ends_with(RESIZE) || program.starts_with(TRACE)
}

/// Lines of a kernel's version and `PROGRAM=INSTRUCTIONS`.
fn rows(text: &str) -> BTreeMap<Kernel, Row> {
    let lines = text.lines().filter(|line| !line.starts_with('#'));
    lines
        .map(|line| {
            let mut words = line.split_whitespace();
            let kernel = words.next().and_then(version).expect("a kernel's version");
            let programs = words.map(|word| {
                let (program, instructions) = word.split_once('=').expect("PROGRAM=INSTRUCTIONS");
                (program.to_owned(), instructions.parse().unwrap())
            });
            (kernel, programs.collect())
        })
        .collect()
}

fn row((major, minor): Kernel, programs: &Row) -> String {
    let mut row = format!("{major}.{minor}");
    for (program, instructions) in programs {
        write!(row, " {program}={instructions}").unwrap();
    }
    row
}

/// 6 and 12 for `6.12.48+deb13-amd64`.
fn version(release: &str) -> Option<Kernel> {
    let mut numbers = release
        .split(|c: char| !c.is_ascii_digit())
        .map(|number| number.parse().ok());
    Some((numbers.next()??, numbers.next()??))
}

#[test]
fn kernels_have_the_limits_that_were_measured_or_generous_ones() {
    let rows = rows("# measured\n6.1 a=1000\n6.12 a=800 b=50\n");
    let limit = |release, program| limit(&rows, version(release).unwrap(), program);
    assert_eq!(limit("6.1.0-40-amd64", "a"), Some(1100));
    assert_eq!(limit("6.12.48+deb13-amd64", "a"), Some(880));
    assert_eq!(
        limit("6.1.0-40-amd64", "b"),
        None,
        "a program without a budget"
    );
    assert_eq!(limit("6.18.5", "a"), Some(1600));
    assert_eq!(limit("7.0", "b"), Some(100));
    assert_eq!(limit("6.1", "a/resize"), Some(LIMIT_FOR_A_WHILE));
    assert_eq!(limit("6.6", "a/resize"), Some(LIMIT_FOR_A_WHILE));
    assert_eq!(limit("6.1", "trace_a"), Some(LIMIT_FOR_A_WHILE));
    for between_or_before in ["6.6.1", "5.15"] {
        assert_eq!(limit(between_or_before, "a"), Some(LIMIT_OF_OTHERS));
    }
    let row = row((6, 12), &rows[&(6, 12)]);
    assert_eq!(row, "6.12 a=800 b=50");
}

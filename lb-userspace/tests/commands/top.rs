//! `node-lb top`, beside an agent: for scripts, and on a terminal.

use std::{
    fs::File,
    io::{BufRead as _, BufReader, Read as _, Write as _},
    os::unix::net::{UnixListener, UnixStream},
    path::PathBuf,
    process::{Child, Command, Stdio},
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use lb_common::abi::Latencies;
use nix::{
    pty::{OpenptyResult, Winsize, openpty},
    sys::{
        signal::{Signal, kill},
        termios::{LocalFlags, tcgetattr},
    },
    unistd::Pid,
};
use node_lb::{
    agent::local_api::traffic::{EndpointTraffic, PortTraffic, ServiceEndpoints, Traffic},
    latency::Answered,
};
use serde_json::Value;
use tempfile::TempDir;

use crate::{Files, stderr, stdout};

/// How long anything may take on a machine that is busy.
const PATIENCE: Duration = Duration::from_secs(30);

/// Says that each answer is a second later than the one before, with ten connections more.
struct Agent {
    directory: TempDir,
    answers: Arc<AtomicU64>,
    /// Whether it answers at all.
    is_silent: Arc<AtomicBool>,
}

impl Agent {
    fn start() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let listener = UnixListener::bind(directory.path().join("agent.sock")).unwrap();
        let (answers, is_silent) = (Arc::<AtomicU64>::default(), Arc::<AtomicBool>::default());
        let (count, silent) = (answers.clone(), is_silent.clone());
        // Ends with the process.
        thread::spawn(move || {
            for stream in listener.incoming() {
                if !silent.load(Ordering::SeqCst) {
                    answer(stream.unwrap(), &count);
                }
            }
        });
        Self {
            directory,
            answers,
            is_silent,
        }
    }

    fn socket(&self) -> PathBuf {
        self.directory.path().join("agent.sock")
    }

    fn run(&self, arguments: &[&str]) -> std::process::Output {
        let socket = self.socket();
        let all = [&["top", "--socket", socket.to_str().unwrap()], arguments];
        Files::new(&[]).run(&all.concat())
    }
}

fn answer(mut stream: UnixStream, count: &AtomicU64) {
    let lines = BufReader::new(&stream).lines().map(Result::unwrap);
    let request: Vec<_> = lines.take_while(|line| !line.is_empty()).collect();
    let body = match request[0].split(' ').nth(1).unwrap() {
        "/traffic" => {
            let number = count.fetch_add(1, Ordering::SeqCst);
            serde_json::to_string(&traffic(number)).unwrap()
        }
        "/traffic/shop/web" => serde_json::to_string(&endpoints()).unwrap(),
        _ => return write!(stream, "HTTP/1.0 404 Not Found\r\n\r\n").unwrap(),
    };
    // Who asked may have gone.
    let _ = write!(stream, "HTTP/1.0 200 OK\r\n\r\n{body}");
}

fn traffic(number: u64) -> Traffic {
    // All within one bucket, from 98 to 131 microseconds.
    let answered = |connections| {
        let mut latencies = Latencies::default();
        latencies.buckets[2] = connections as u32;
        let mut answered = Answered::default();
        answered.add(&latencies);
        answered
    };
    let port = |service: &str, connections| PortTraffic {
        service: service.to_owned(),
        service_port: format!("{service}:http"),
        protocol: "TCP".to_owned(),
        ids: vec![1],
        open: 4,
        connections,
        answered: answered(connections),
        ..PortTraffic::default()
    };
    Traffic {
        at_ms: 1000 * (number + 1),
        node: "node-1".to_owned(),
        service_ports: vec![port("shop/cart", 0), port("shop/web", 10 * number)],
        ..Traffic::default()
    }
}

fn endpoints() -> ServiceEndpoints {
    ServiceEndpoints {
        at_ms: 1,
        endpoints: vec![EndpointTraffic {
            service_port: "shop/web:http".to_owned(),
            protocol: "TCP".to_owned(),
            address: "10.1.0.1:8080".parse().unwrap(),
            ready: true,
            connections: 1,
            failures: 0,
            avoided: false,
            latency_us: Some(81.92),
        }],
    }
}

#[test]
fn once_shows_what_two_looks_have_between_them() {
    let agent = Agent::start();
    let shown = agent.run(&["--once", "--interval", "200ms"]);
    assert!(shown.status.success(), "{}", stderr(&shown));
    let lines: Vec<_> = stdout(&shown).lines().collect();
    assert_eq!(lines[0], "Node: node-1");
    assert!(lines[2].starts_with("SERVICE PORT"), "{lines:?}");
    assert!(lines[3].starts_with("shop/web:http"), "{lines:?}");
    assert!(lines[3].contains(" 10.0 "), "{lines:?}");
    assert!(lines[3].contains("115us  131us"), "{lines:?}");
    assert_eq!(agent.answers.load(Ordering::SeqCst), 2);

    let shown = agent.run(&["--once", "-o", "json", "--filter", "CART"]);
    let object: Value = serde_json::from_str(stdout(&shown)).unwrap();
    assert_eq!(object["servicePorts"].as_array().unwrap().len(), 1);
    assert_eq!(object["servicePorts"][0]["servicePort"], "shop/cart:http");
    assert_eq!(object["seconds"], 1.0);
    assert_eq!(
        object["servicePorts"][0]["latency"],
        Value::Null,
        "nobody was answered"
    );
    let shown = agent.run(&["--once", "-o", "json", "--filter", "WEB"]);
    let object: Value = serde_json::from_str(stdout(&shown)).unwrap();
    let p50 = object["servicePorts"][0]["latency"]["p50Us"].as_f64();
    assert!((p50.unwrap() - 114.688).abs() < 1e-6, "{object}");
}

#[test]
fn json_goes_on_until_nobody_reads_it() {
    let agent = Agent::start();
    let mut top = Command::new(env!("CARGO_BIN_EXE_node-lb"))
        .args(["top", "-o", "json", "--interval", "200ms", "--socket"])
        .arg(agent.socket())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(top.stdout.take().unwrap()).lines();
    for _ in 0..3 {
        let object: Value = serde_json::from_str(&lines.next().unwrap().unwrap()).unwrap();
        assert_eq!(object["servicePorts"][1]["perSecond"]["connections"], 10.0);
    }
    drop(lines);
    assert!(top.wait().unwrap().success());
}

#[test]
fn what_cannot_be_shown_is_said() {
    let agent = Agent::start();
    let shown = agent.run(&[]);
    assert!(!shown.status.success());
    assert!(stderr(&shown).contains("--once"), "{}", stderr(&shown));
    let shown = agent.run(&["--interval", "1ms"]);
    assert_eq!(shown.status.code(), Some(2));
    assert!(stderr(&shown).contains("200ms"), "{}", stderr(&shown));
    let shown = Files::new(&[]).run(&["top", "--once", "--socket", "none.sock"]);
    assert!(stderr(&shown).contains("none.sock"), "{}", stderr(&shown));
}

/// `node-lb top` on a terminal of its own, of 80 columns and 24 rows.
struct Screen {
    top: Child,
    terminal: OpenptyResult,
    /// All that it has written.
    written: Arc<Mutex<String>>,
}

/// What is on the screen after all that has been written: text, and where the cursor is put. Other
/// sequences change only what the text looks like.
fn lines(written: &str) -> Vec<String> {
    let mut screen = vec![vec![' '; 80]; 24];
    let (mut row, mut column) = (0, 0);
    let mut characters = written.chars();
    while let Some(character) = characters.next() {
        if character != '\x1b' {
            if let Some(cell) = screen.get_mut(row).and_then(|row| row.get_mut(column)) {
                *cell = character;
            }
            column += 1;
            continue;
        }
        let sequence: String = characters
            .by_ref()
            .skip(1) // the bracket
            .take_while(|part| *part != 'H' && !part.is_ascii_lowercase())
            .collect();
        let place = sequence.split_once(';');
        let place = place.map(|(row, column)| (row.parse::<usize>(), column.parse::<usize>()));
        if let Some((Ok(at), Ok(from))) = place {
            (row, column) = (at - 1, from - 1);
        }
    }
    screen.into_iter().map(String::from_iter).collect()
}

impl Screen {
    fn open(agent: &Agent) -> Self {
        Self::open_by(&[], agent)
    }

    /// By a command that runs its arguments.
    fn open_by(command: &[&str], agent: &Agent) -> Self {
        let size = Winsize {
            ws_row: 24,
            ws_col: 80,
            ws_xpixel: 0,
            ws_ypixel: 0,
        };
        let terminal = openpty(&size, None).unwrap();
        let end = || Stdio::from(terminal.slave.try_clone().unwrap());
        // In a session of its own, or it would look at the terminal of whoever runs this test.
        let top = Command::new("setsid")
            .args(["--ctty", "--wait"])
            .args(command)
            .arg(env!("CARGO_BIN_EXE_node-lb"))
            .args(["top", "--interval", "200ms", "--bpf-root", "/nonexistent"])
            .arg("--socket")
            .arg(agent.socket())
            .stdin(end())
            .stdout(end())
            .stderr(end())
            .spawn()
            .unwrap();
        let written = Arc::<Mutex<String>>::default();
        let (kept, mut master) = (
            written.clone(),
            File::from(terminal.master.try_clone().unwrap()),
        );
        // Ends with the process.
        thread::spawn(move || {
            let mut part = [0; 4096];
            while let Ok(length @ 1..) = master.read(&mut part) {
                let text = String::from_utf8_lossy(&part[..length]);
                kept.lock().unwrap().push_str(&text);
            }
        });
        Self {
            top,
            terminal,
            written,
        }
    }

    /// Waits until a line of the screen has this text.
    fn expect(&self, text: &str) {
        self.wait(text, |written| {
            lines(written).iter().any(|line| line.contains(text))
        });
    }

    /// Waits until this has been written to control the terminal.
    fn expect_control(&self, sequence: &str) {
        self.wait(sequence, |written| written.contains(sequence));
    }

    fn wait(&self, what: &str, is_there: impl Fn(&str) -> bool) {
        let until = Instant::now() + PATIENCE;
        loop {
            let written = self.written.lock().unwrap().clone();
            if is_there(&written) {
                return;
            }
            assert!(
                Instant::now() < until,
                "no {what:?} in {:#?}",
                lines(&written)
            );
            thread::sleep(Duration::from_millis(20));
        }
    }

    fn press(&self, keys: &str) {
        let mut master = File::from(self.terminal.master.try_clone().unwrap());
        master.write_all(keys.as_bytes()).unwrap();
    }

    fn is_raw(&self) -> bool {
        let flags = tcgetattr(&self.terminal.slave).unwrap().local_flags;
        !flags.intersects(LocalFlags::ICANON | LocalFlags::ECHO)
    }

    /// Waits for its end, after which the terminal is as it was.
    fn expect_end(mut self) {
        let status = self.top.wait().unwrap();
        assert!(status.success(), "{status}");
        self.expect_control("\x1b[?1049l");
        assert!(!self.is_raw());
    }
}

#[test]
fn keys_lead_through_the_views_of_a_terminal_and_it_is_left_as_it_was() {
    let agent = Agent::start();
    let screen = Screen::open(&agent);
    screen.expect_control("\x1b[?1049h");
    screen.expect("shop/web:http");
    screen.expect("10.0");
    assert!(screen.is_raw());
    screen.press("\r");
    screen.expect("Endpoints of shop/web:http TCP");
    screen.expect("10.1.0.1:8080");
    // There are no maps here.
    screen.expect("flows cannot be counted");
    screen.press("b");
    screen.expect("Budgets");
    screen.press("/cart\r");
    screen.expect("filter: cart");
    screen.press("p");
    screen.expect("STOPPED");
    screen.press("q");
    screen.expect_end();
}

#[test]
fn a_screen_outlives_a_silent_agent_and_ends_by_a_signal() {
    let agent = Agent::start();
    let screen = Screen::open(&agent);
    screen.expect("shop/web:http");
    agent.is_silent.store(true, Ordering::SeqCst);
    screen.expect("The agent does not answer");
    agent.is_silent.store(false, Ordering::SeqCst);
    screen.expect("half-open");
    let id = screen.top.id().to_string();
    let child = format!("/proc/{id}/task/{id}/children");
    let child = std::fs::read_to_string(child).unwrap();
    let pid = match child.trim() {
        // It has become the program itself.
        "" => id.parse(),
        child => child.parse(),
    };
    kill(Pid::from_raw(pid.unwrap()), Signal::SIGTERM).unwrap();
    screen.expect_end();
}

/// A terminal stops what is in its background and changes its settings.
#[test]
fn a_screen_that_waits_for_the_foreground_ends_by_a_signal() {
    let agent = Agent::start();
    let limit = "timeout --kill-after=30 1 \"$@\"; exit $?";
    let mut screen = Screen::open_by(&["sh", "-c", limit, "sh"], &agent);
    let status = screen.top.wait().unwrap();
    // If `timeout` had to kill it, it would be 137.
    assert_eq!(status.code(), Some(124));
    assert!(!screen.is_raw());
}

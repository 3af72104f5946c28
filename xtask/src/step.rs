//! Shows long commands as one line of progress each. Their own output goes to a log.

use std::{
    fs::{File, OpenOptions},
    io::{IsTerminal, Write, stdout},
    path::{Path, PathBuf},
    process::{Command, Stdio},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail};

use crate::cargo::describe;

/// Runs commands and shows their progress.
pub struct Steps {
    log: PathBuf,
}

impl Steps {
    /// Steps that write to `log`, which is emptied first.
    pub fn new(log: PathBuf) -> Result<Self> {
        if let Some(directory) = log.parent() {
            std::fs::create_dir_all(directory)
                .with_context(|| format!("cannot make {}", directory.display()))?;
        }
        File::create(&log).with_context(|| format!("cannot write {}", log.display()))?;
        Ok(Self { log })
    }

    /// Runs `command` to its end. Shows `title`, the elapsed time and, on a terminal, the latest
    /// line of output.
    ///
    /// # Errors
    /// If the command fails. The error contains the last lines that it printed.
    pub fn run(&self, title: &str, command: &mut Command) -> Result<()> {
        let mut log = self.open()?;
        writeln!(log, "$ {}", describe(command))?;
        let begin = log.metadata()?.len();
        command
            .stdin(Stdio::null())
            .stdout(log.try_clone()?)
            .stderr(log);
        let mut child = command
            .spawn()
            .with_context(|| format!("cannot run {}", command.get_program().display()))?;

        let mut line = Line::begin(title);
        let status = loop {
            if let Some(status) = child.try_wait()? {
                break status;
            }
            line.update(|| {
                self.output_since(begin)
                    .lines()
                    .last()
                    .unwrap_or("")
                    .to_owned()
            });
            thread::sleep(Duration::from_millis(100));
        };
        line.end(status.success());
        if status.success() {
            return Ok(());
        }
        let output = self.output_since(begin);
        let lines: Vec<_> = output.lines().collect();
        let tail = lines[lines.len().saturating_sub(15)..].join("\n    ");
        bail!("`{}` failed ({status}):\n    {tail}", describe(command))
    }

    fn open(&self) -> Result<File> {
        let options = OpenOptions::new().append(true).open(&self.log);
        options.with_context(|| format!("cannot write {}", self.log.display()))
    }

    fn output_since(&self, begin: u64) -> String {
        read_from(&self.log, begin).unwrap_or_default()
    }
}

/// The line a step shows.
struct Line<'a> {
    title: &'a str,
    started: Instant,
    shown: Instant,
    terminal: bool,
}

impl<'a> Line<'a> {
    /// How often progress is shown without a terminal.
    const STILL_RUNNING: Duration = Duration::from_secs(30);

    fn begin(title: &'a str) -> Self {
        let now = Instant::now();
        let line = Self {
            title,
            started: now,
            shown: now,
            terminal: stdout().is_terminal(),
        };
        if !line.terminal {
            println!("  {title} ...");
        }
        line
    }

    fn update(&mut self, latest: impl FnOnce() -> String) {
        let period = if self.terminal {
            Duration::from_millis(400)
        } else {
            Self::STILL_RUNNING
        };
        if self.shown.elapsed() < period {
            return;
        }
        self.shown = Instant::now();
        let seconds = self.started.elapsed().as_secs();
        if self.terminal {
            let latest: String = latest()
                .trim()
                .chars()
                .filter(|c| !c.is_control())
                .collect();
            let text = format!("  {} ({seconds} s)  {latest}", self.title);
            print!("\r\x1b[2K{}", text.chars().take(100).collect::<String>());
            // If the terminal is gone, the command still goes on.
            let _ = stdout().flush();
        } else {
            println!("  still {} ({seconds} s)", self.title);
        }
    }

    fn end(&self, success: bool) {
        let clear = if self.terminal { "\r\x1b[2K" } else { "" };
        let seconds = self.started.elapsed().as_secs_f32();
        let outcome = if success { "done" } else { "not done" };
        println!("{clear}  {}: {outcome} after {seconds:.1} s", self.title);
    }
}

fn read_from(path: &Path, begin: u64) -> std::io::Result<String> {
    use std::io::{Read, Seek, SeekFrom};
    let mut file = File::open(path)?;
    file.seek(SeekFrom::Start(begin))?;
    let mut bytes = Vec::new();
    file.read_to_end(&mut bytes)?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

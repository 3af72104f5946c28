//! The terminal: threads that read, and the loop that draws what they have read.

use std::{
    path::{Path, PathBuf},
    sync::mpsc::{self, Receiver, RecvTimeoutError, Sender},
    thread,
    time::{Duration, Instant},
};

use anyhow::Context as _;
use nix::sys::signal::{SigSet, Signal};
use ratatui::crossterm::event::{self, Event};

use super::{
    app::{App, Asked, Wants},
    endpoints,
    flows::{Ask, Count, Counter},
    frame::{self, Endpoint, Frame},
    screen, traffic,
};
use crate::{
    agent::local_api::traffic::{ServiceEndpoints, Traffic},
    cli::local_api::LocalApi,
};

/// The screen is drawn so often at least, because it tells how old numbers are.
const REDRAW: Duration = Duration::from_secs(1);
/// Of the time, counting flows may take one part in so many.
const SHARE: u32 = 20;

/// Something that the loop has to do with.
enum News {
    Terminal(Event),
    /// The terminal cannot be read any more, or a signal asks to end.
    End,
    Answered(Box<Frame>),
    /// Of a Service, `namespace/name`.
    Endpoints(String, Vec<Endpoint>),
    NotAnswered(String),
    Counted(Result<Count, String>),
}

/// Shows the screen until the user leaves it.
///
/// # Errors
/// If the terminal cannot be used.
pub fn run(
    agent: LocalApi,
    bpf_root: PathBuf,
    interval: Duration,
    filter: String,
) -> anyhow::Result<()> {
    let (tell, news) = mpsc::channel();
    // It puts the terminal back before the message of a panic is printed. In the background it stops the process
    // (SIGTTOU), which signals can still end then.
    let mut terminal = ratatui::try_init().context("cannot use the terminal")?;
    // Before there are threads, which all have the same mask.
    let signals = SigSet::from_iter([Signal::SIGTERM, Signal::SIGHUP, Signal::SIGINT]);
    signals.thread_block().context("cannot block signals")?;
    let ended = tell.clone();
    thread::spawn(move || {
        let _ = signals.wait();
        // Nobody listens any more at the end.
        let _ = ended.send(News::End);
    });
    let (ask, asked) = mpsc::channel();
    let (count, counts) = mpsc::channel();
    let sampled = tell.clone();
    thread::spawn(move || sample(&agent, interval, &asked, &sampled));
    let counted = tell.clone();
    thread::spawn(move || count_flows(&bpf_root, interval, &counts, &counted));
    thread::spawn(move || read_terminal(&tell));

    let mut app = App::new(filter);
    let ended = show(&mut app, interval, &news, &ask, &count, |app| {
        terminal.draw(|frame| screen::draw(frame, app, interval, Instant::now()))?;
        Ok(())
    });
    ratatui::try_restore().context("cannot put the terminal back")?;
    ended
}

/// Draws the screen after each piece of news, and has read what it shows.
fn show(
    app: &mut App,
    interval: Duration,
    news: &Receiver<News>,
    ask: &Sender<Option<String>>,
    count: &Sender<Option<Ask>>,
    mut draw: impl FnMut(&mut App) -> anyhow::Result<()>,
) -> anyhow::Result<()> {
    let mut wants = Wants::default();
    loop {
        draw(app)?;
        match news.recv_timeout(REDRAW.min(interval)) {
            Ok(News::Terminal(Event::Key(key))) => {
                if app.press(key) == Asked::Quit {
                    return Ok(());
                }
            }
            Ok(News::Terminal(_)) | Err(RecvTimeoutError::Timeout) => {}
            Ok(News::End) | Err(RecvTimeoutError::Disconnected) => return Ok(()),
            Ok(News::Answered(frame)) => app.answered(*frame, Instant::now()),
            Ok(News::Endpoints(service, endpoints)) => app.looked(service, endpoints),
            Ok(News::NotAnswered(why)) => app.not_answered(why),
            Ok(News::Counted(found)) => app.counted(found),
        }
        let wanted = app.wants();
        // Who would read it has ended only if this process ends.
        if wanted.service != wants.service {
            let _ = ask.send(wanted.service.clone());
        }
        if wanted.flows != wants.flows {
            let _ = count.send(wanted.flows.clone());
        }
        wants = wanted;
    }
}

/// Waits for keys.
fn read_terminal(tell: &Sender<News>) {
    loop {
        let news = event::read().map_or(News::End, News::Terminal);
        let is_end = matches!(news, News::End);
        if tell.send(news).is_err() || is_end {
            return;
        }
    }
}

/// Asks the agent once in each interval, and for endpoints at once if those of another Service are
/// looked at.
fn sample(
    agent: &LocalApi,
    interval: Duration,
    asked: &Receiver<Option<String>>,
    tell: &Sender<News>,
) {
    let mut before: Option<Traffic> = None;
    let mut service = Looked::default();
    loop {
        let next = Instant::now() + interval;
        let news = match traffic(agent) {
            Ok(traffic) => {
                let frame = Frame::new(&traffic, before.as_ref());
                before = Some(traffic);
                News::Answered(Box::new(frame))
            }
            Err(error) => News::NotAnswered(format!("{error:#}")),
        };
        if tell.send(news).is_err() {
            return;
        }
        service.look(agent, tell);
        loop {
            match asked.recv_timeout(next.saturating_duration_since(Instant::now())) {
                Ok(name) => {
                    service = Looked { name, before: None };
                    service.look(agent, tell);
                }
                Err(RecvTimeoutError::Timeout) => break,
                Err(RecvTimeoutError::Disconnected) => return,
            }
        }
    }
}

/// The Service whose endpoints are looked at, if there is one.
#[derive(Default)]
struct Looked {
    name: Option<String>,
    before: Option<ServiceEndpoints>,
}

impl Looked {
    fn look(&mut self, agent: &LocalApi, tell: &Sender<News>) {
        let Some(name) = &self.name else { return };
        let news = match endpoints(agent, name) {
            // Of a Service that is gone there are none.
            Ok(now) => {
                let now = now.unwrap_or_default();
                let rows = frame::endpoints(&now, self.before.as_ref());
                self.before = Some(now);
                News::Endpoints(name.clone(), rows)
            }
            Err(error) => News::NotAnswered(format!("{error:#}")),
        };
        // That nobody is there to be told is noticed with the next numbers.
        let _ = tell.send(news);
    }
}

/// Counts flows while a view shows them, and seldom enough that it costs little.
fn count_flows(
    root: &Path,
    interval: Duration,
    counts: &Receiver<Option<Ask>>,
    tell: &Sender<News>,
) {
    let mut ask: Option<Ask> = None;
    let mut counter = Counter::default();
    let mut next = Instant::now();
    loop {
        let asked = match &ask {
            Some(_) => counts.recv_timeout(next.saturating_duration_since(Instant::now())),
            None => counts.recv().map_err(|_| RecvTimeoutError::Disconnected),
        };
        match asked {
            Ok(other) => ask = other,
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => return,
        }
        let Some(ask) = &ask else { continue };
        let count = counter.count(root, ask);
        let took = count.as_ref().map_or(Duration::ZERO, |count| count.took);
        next = Instant::now() + interval.max(took * SHARE);
        let count = count.map_err(|error| format!("{error:#}"));
        if tell.send(News::Counted(count)).is_err() {
            return;
        }
    }
}

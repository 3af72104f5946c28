//! The state of the screen, and what keys do to it.

use std::time::Instant;

use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyEventKind, KeyModifiers};

use super::{
    flows::{Ask, Count},
    frame::{Endpoint, Frame},
    table::{Sort, Table},
    view::{Known, Subject, View},
};

/// The longest text to filter by.
const FILTER: usize = 64;
/// Rows that page keys go by if the screen has not been drawn yet.
const PAGE: usize = 10;

/// What a key asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Asked {
    Nothing,
    Quit,
}

/// What has to be read for what is shown, besides all Services.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Wants {
    /// The Service whose endpoints are looked at.
    pub service: Option<String>,
    /// The flows to be counted.
    pub flows: Option<Ask>,
}

/// A view that is open.
#[derive(Clone, Debug)]
pub struct Open {
    pub view: View,
    pub sort: Sort,
    /// What the cursor is on; the first row if that is not there any more.
    pub cursor: Option<Subject>,
    /// The first row on the screen.
    pub top: usize,
}

/// The state of the screen.
#[derive(Debug)]
pub struct App {
    /// The one that is shown comes last, those that have led to it before.
    views: Vec<Open>,
    /// Only rows with this text are shown.
    pub filter: String,
    /// Whether keys go to the filter.
    pub is_typing: bool,
    known: Known,
    /// What was known when the screen was stopped, if it is.
    stopped: Option<Known>,
    /// When the agent answered last.
    pub answered: Option<Instant>,
    /// Why it does not answer, if so.
    pub failure: Option<String>,
    /// Why flows cannot be counted, if so.
    pub uncounted: Option<String>,
    /// Rows that fit on the screen.
    pub page: usize,
}

impl Open {
    fn new(view: View) -> Self {
        Self {
            sort: view.sort(),
            view,
            cursor: None,
            top: 0,
        }
    }
}

impl App {
    /// The screen before anything is known.
    pub fn new(filter: String) -> Self {
        Self {
            views: vec![Open::new(View::Services)],
            filter,
            is_typing: false,
            known: Known::default(),
            stopped: None,
            answered: None,
            failure: None,
            uncounted: None,
            page: PAGE,
        }
    }

    /// Takes over what the agent has answered.
    pub fn answered(&mut self, frame: Frame, at: Instant) {
        self.known.frame = frame;
        self.known.join();
        self.answered = Some(at);
        self.failure = None;
    }

    /// Takes over the endpoints of a Service, `namespace/name`.
    pub fn looked(&mut self, service: String, endpoints: Vec<Endpoint>) {
        self.known.endpoints = Some((service, endpoints));
    }

    /// Notes that the agent has not answered; what it said last stays on the screen.
    pub fn not_answered(&mut self, why: String) {
        self.failure = Some(why);
    }

    /// Takes over flows that have been counted, or why they cannot be.
    pub fn counted(&mut self, count: Result<Count, String>) {
        match count {
            Ok(count) => {
                self.known.count = Some(count);
                self.known.join();
                self.uncounted = None;
            }
            Err(why) => self.uncounted = Some(why),
        }
    }

    /// What is on the screen.
    pub fn shown(&self) -> &Known {
        self.stopped.as_ref().unwrap_or(&self.known)
    }

    /// Whether the screen is stopped.
    pub fn is_stopped(&self) -> bool {
        self.stopped.is_some()
    }

    /// The view on the screen.
    pub fn open(&self) -> &Open {
        // There is always the first one.
        &self.views[self.views.len() - 1]
    }

    fn open_mut(&mut self) -> &mut Open {
        let last = self.views.len() - 1;
        &mut self.views[last]
    }

    /// The rows of the view on the screen, in their order.
    pub fn table(&self) -> Table {
        let open = self.open();
        let mut table = open.view.table(self.shown());
        table.filter(&self.filter);
        table.sort(open.sort);
        table
    }

    /// What has to be read for the view on the screen.
    pub fn wants(&self) -> Wants {
        let view = &self.open().view;
        Wants {
            service: view.service().map(str::to_owned),
            flows: view.asks(&self.known.frame),
        }
    }

    /// Whether what the view on the screen shows is not known yet.
    pub fn is_unknown(&self) -> bool {
        let known = self.shown();
        let service = self.open().view.service();
        let endpoints = known.endpoints.as_ref();
        let is_known =
            service.is_none_or(|service| endpoints.is_some_and(|(known, _)| known == service));
        let is_counting = self.is_counting() && self.uncounted.is_none();
        self.answered.is_none() || !is_known || is_counting
    }

    /// Whether the view on the screen waits for flows that have not been counted yet.
    pub fn is_counting(&self) -> bool {
        let view = &self.open().view;
        let asks = view.asks(&self.shown().frame);
        let asks = asks.filter(|_| !view.does_without_flows());
        let count = self.shown().count.as_ref();
        asks.is_some() && count.and_then(|count| count.ask.as_ref()) != asks.as_ref()
    }

    /// The place of the cursor in a table of so many rows, and the first row on a screen on which
    /// `page` rows fit: as before, if the cursor is there.
    pub fn place(&self, table: &Table, page: usize) -> (usize, usize) {
        let open = self.open();
        let is_at = |subject: &Subject| table.rows.iter().position(|row| row.subject == *subject);
        let cursor = open.cursor.as_ref().and_then(is_at).unwrap_or(0);
        let last = table.rows.len().saturating_sub(page);
        let top = open.top.min(last).min(cursor);
        (cursor, top.max((cursor + 1).saturating_sub(page)))
    }

    /// Does what a key asks for.
    pub fn press(&mut self, key: KeyEvent) -> Asked {
        if key.kind == KeyEventKind::Release {
            return Asked::Nothing;
        }
        let is_control = key.modifiers.contains(KeyModifiers::CONTROL);
        if is_control && key.code == KeyCode::Char('c') {
            return Asked::Quit;
        }
        if self.is_typing {
            self.type_filter(key.code);
            return Asked::Nothing;
        }
        match key.code {
            KeyCode::Char('q') => return Asked::Quit,
            KeyCode::Esc | KeyCode::Backspace => self.back(),
            KeyCode::Enter => self.enter(),
            KeyCode::Char('/') => self.is_typing = true,
            KeyCode::Char('p' | ' ') => self.stop_or_go(),
            KeyCode::Char('s') => self.switch(View::Sources),
            KeyCode::Char('b') => self.switch(View::Budgets),
            KeyCode::Char('r') => self.switch(View::Reasons),
            KeyCode::Char('o') => {
                let sort = &mut self.open_mut().sort;
                sort.is_descending = !sort.is_descending;
            }
            KeyCode::Left | KeyCode::Char('<') => self.sort_by(-1),
            KeyCode::Right | KeyCode::Char('>') => self.sort_by(1),
            KeyCode::Up | KeyCode::Char('k') => self.go(-1),
            KeyCode::Down | KeyCode::Char('j') => self.go(1),
            KeyCode::PageUp => self.go(-(self.page as isize)),
            KeyCode::PageDown => self.go(self.page as isize),
            KeyCode::Home => self.go(isize::MIN),
            KeyCode::End => self.go(isize::MAX),
            _ => {}
        }
        Asked::Nothing
    }

    fn type_filter(&mut self, code: KeyCode) {
        match code {
            KeyCode::Enter => self.is_typing = false,
            KeyCode::Esc => {
                self.is_typing = false;
                self.filter.clear();
            }
            KeyCode::Backspace => drop(self.filter.pop()),
            // Names have no other characters.
            KeyCode::Char(typed) if typed.is_ascii_graphic() && self.filter.len() < FILTER => {
                self.filter.push(typed);
            }
            _ => {}
        }
    }

    /// Goes back to the view before; in the first one, takes the filter away.
    fn back(&mut self) {
        if self.views.len() > 1 {
            self.views.pop();
        }
        self.filter.clear();
    }

    fn enter(&mut self) {
        let table = self.table();
        let (cursor, _) = self.place(&table, self.page);
        let Some(row) = table.rows.get(cursor) else {
            return;
        };
        let open = self.open_mut();
        // Where the cursor is to be when this view is shown again.
        open.cursor = Some(row.subject.clone());
        if let Some(view) = open.view.below(&row.subject) {
            self.show(view);
        }
    }

    /// Shows a view that every other one leads to; if it is shown, goes back.
    fn switch(&mut self, view: View) {
        if self.open().view == view {
            return self.back();
        }
        // The way back leads through none of them twice.
        self.views.retain(|open| open.view != view);
        self.show(view);
    }

    /// Shows another view, with the present numbers: what was known when the screen was stopped may
    /// not be enough for it.
    fn show(&mut self, view: View) {
        self.views.push(Open::new(view));
        self.filter.clear();
        self.stopped = None;
    }

    fn stop_or_go(&mut self) {
        self.stopped = match self.stopped.take() {
            Some(_) => None,
            None => Some(self.known.clone()),
        };
    }

    fn sort_by(&mut self, step: isize) {
        let columns = self.table().columns.len();
        let open = self.open_mut();
        let column = open.sort.column as isize + step;
        open.sort.column = column.rem_euclid(columns as isize) as usize;
        // Names begin with a, numbers with the largest.
        open.sort.is_descending = open.sort.column != 0;
    }

    /// Moves the cursor by so many rows.
    fn go(&mut self, rows: isize) {
        let table = self.table();
        let page = self.page;
        let (cursor, _) = self.place(&table, page);
        let cursor = cursor.saturating_add_signed(rows);
        let cursor = cursor.min(table.rows.len().saturating_sub(1));
        let subject = table.rows.get(cursor).map(|row| row.subject.clone());
        self.open_mut().cursor = subject;
        let (_, top) = self.place(&table, page);
        self.open_mut().top = top;
    }
}

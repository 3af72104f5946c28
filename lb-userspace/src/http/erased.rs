//! Handlers as values of one type.

use std::{pin::Pin, sync::Arc};

use super::{Class, Handler, Request, Response};

/// A handler of any type. Layers and connections hold it, and with them HTTP itself is compiled once:
/// for each type of handler, it would take longer than all the rest of this crate.
pub trait AnyHandler: Send + Sync + 'static {
    /// [`Handler::class`].
    fn class_of(&self, request: &Request) -> Class;

    /// [`Handler::call`].
    fn answer<'a>(
        &'a self,
        request: Request,
    ) -> Pin<Box<dyn Future<Output = Response> + Send + 'a>>;
}

impl<H: Handler> AnyHandler for H {
    fn class_of(&self, request: &Request) -> Class {
        self.class(request)
    }

    fn answer<'a>(
        &'a self,
        request: Request,
    ) -> Pin<Box<dyn Future<Output = Response> + Send + 'a>> {
        Box::pin(self.call(request))
    }
}

/// [`AnyHandler`] as a [`Handler`], which layers can hold.
pub struct Erased(Arc<dyn AnyHandler>);

impl Erased {
    pub fn new(handler: impl Handler) -> Self {
        Self(Arc::new(handler))
    }
}

impl Handler for Erased {
    fn class(&self, request: &Request) -> Class {
        self.0.class_of(request)
    }

    fn call(&self, request: Request) -> impl Future<Output = Response> + Send {
        self.0.answer(request)
    }
}

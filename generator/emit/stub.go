package emit

import (
	"github.com/outboxgen/outboxgen/generator/model"
	"github.com/outboxgen/outboxgen/templates"
)

// handlersStub renders the type that a person fills in to handle a namespace.
func (e *emitter) handlersStub(ns *model.Namespace) ([]byte, error) {
	return templates.HandlersStub(templates.Handlers{
		Package:   e.model.Package,
		Namespace: ns.Name,
		Interface: handlersName(ns),
		Type:      handlerName(ns),
	})
}

// handleStub renders the method that a person fills in to handle a topic.
func (e *emitter) handleStub(t *model.Topic) ([]byte, error) {
	return templates.HandleStub(templates.Handle{
		Package: e.model.Package,
		Topic:   t.FullName(),
		Payload: t.GoName,
		Type:    handlerName(t.Namespace),
		Method:  handleName(t),
	})
}

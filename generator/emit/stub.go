package emit

import (
	"github.com/outboxgen/outboxgen/generator/model"
	"github.com/outboxgen/outboxgen/templates"
)

// handlersStub renders the type that a person completes to handle the topics of a namespace or listener, which of
// names.
func (e *emitter) handlersStub(r reader, of string) ([]byte, error) {
	return templates.HandlersStub(templates.Handlers{
		Package:   e.model.Package,
		Of:        of,
		Interface: r.handlers(),
		Type:      r.handler(),
	})
}

// handleStub renders the method that a person completes to handle a topic.
func (e *emitter) handleStub(r reader, t *model.Topic) ([]byte, error) {
	data := templates.Handle{
		Package: e.model.Package,
		Topic:   t.FullName(),
		Payload: t.GoName,
		Type:    r.handler(),
		Method:  r.method(t),
	}
	if r.batchOf(t).Size > 0 {
		if r.transactional {
			return templates.HandleTxBatchStub(data)
		}
		return templates.HandleBatchStub(data)
	}
	if r.transactional {
		return templates.HandleTxStub(data)
	}
	return templates.HandleStub(data)
}

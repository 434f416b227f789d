package redis

import (
	"maps"
	"slices"
	"strings"

	"github.com/outboxgen/outboxgen/publish"
	"github.com/outboxgen/outboxgen/publish/internal/attributes"
)

// Names of fields.
const (
	bodyField       = "data"
	contentType     = "content-type"
	attributePrefix = "ce_"
)

// prefixed are the names of the fields of attributes.
var prefixed = func() (names [attributes.Count]any) {
	for i, name := range attributes.Names {
		names[i] = attributePrefix + name
	}
	return names
}()

// encoding makes the fields of the events of one call. They share allocations.
type encoding struct {
	encoder publish.Encoder // nil means CloudEvents in binary mode, which are encoded without publish.Message
	left    int             // number of events that may still be encoded

	list  attributes.List
	found []attributes.Attribute
	boxed [attributes.Count]value // the latest value of each attribute
	names []string
	args  []any  // room for the next commands
	bytes []byte // room for the next payloads
	size  int    // of the fields of the event
}

// value is the value of an attribute, and the same as an argument of a command.
type value struct {
	bytes []byte
	arg   any
}

// Sizes of what is allocated for several events, and how many arguments most commands have at most.
const (
	argsPerEvent   = 26
	eventsTogether = 64
	bytesTogether  = 16 << 10
)

// command returns the arguments of a command: those that begin it, and the names and values of the fields of an event, in a
// fixed order. size is that of the fields. They have a copy of the payload, because the command may still be on its way when
// Publish has returned.
func (e *encoding) command(begin []any, o *publish.Outgoing) (args []any, size int, err error) {
	e.size = 0
	if e.encoder == nil {
		if e.found, err = e.list.Append(e.found[:0], "", o.Type(), &o.Event); err != nil {
			return nil, 0, err
		}
		e.room(len(begin) + 2*(len(e.found)+len(o.Headers)+2))
		e.args = append(e.args, begin...)
		for _, a := range e.found {
			e.size += len(attributePrefix) + len(a.Name.String()) + len(a.Value)
			e.args = append(e.args, prefixed[a.Name], e.box(a))
		}
		e.add(contentType, attributes.ContentType)
		e.addHeaders(o.Headers, true)
		e.addBody(o.Payload)
	} else {
		m, err := e.encoder.Encode(*o)
		if err != nil {
			return nil, 0, err
		}
		e.room(len(begin) + 2*(len(m.Attributes)+len(m.Headers)+2))
		e.args = append(e.args, begin...)
		for _, name := range e.sorted(m.Attributes) {
			e.add(attributePrefix+name, m.Attributes[name])
		}
		if m.ContentType != "" {
			e.add(contentType, m.ContentType)
		}
		e.addHeaders(m.Headers, false)
		e.addBody(m.Body)
	}
	e.left--
	args, e.args = e.args[:len(e.args):len(e.args)], e.args[len(e.args):]
	return args, e.size, nil
}

// room makes room for n arguments.
func (e *encoding) room(n int) {
	if cap(e.args) < n {
		e.args = make([]any, 0, max(n, argsPerEvent*min(e.left, eventsTogether)))
	}
	e.args = e.args[:0]
}

// box returns the value of an attribute as an argument. Those that follow each other and are equal share it.
func (e *encoding) box(a attributes.Attribute) any {
	last := &e.boxed[a.Name]
	if len(last.bytes) != len(a.Value) || len(a.Value) == 0 || &last.bytes[0] != &a.Value[0] {
		*last = value{a.Value, a.Value}
	}
	return last.arg
}

func (e *encoding) add(name, value string) {
	e.args = append(e.args, name, value)
	e.size += len(name) + len(value)
}

// addHeaders adds the headers of an event in the order of their names. sent says that those of a trace and of a chain are
// attributes already.
func (e *encoding) addHeaders(headers map[string]string, sent bool) {
	if len(headers) == 0 {
		return
	}
	for _, name := range e.sorted(headers) {
		if value := headers[name]; !withheld(name) && !(sent && attributes.IsHeader(name, value)) {
			e.add(name, value)
		}
	}
}

// addBody adds a copy of the body.
func (e *encoding) addBody(body []byte) {
	if cap(e.bytes)-len(e.bytes) < len(body) {
		e.bytes = make([]byte, 0, max(len(body), min(bytesTogether, len(body)*e.left)))
	}
	from := len(e.bytes)
	e.bytes = append(e.bytes, body...)
	e.args = append(e.args, bodyField, e.bytes[from:len(e.bytes):len(e.bytes)])
	e.size += len(bodyField) + len(body)
}

// sorted returns the names of values in order. The result is valid until the next call.
func (e *encoding) sorted(values map[string]string) []string {
	e.names = slices.AppendSeq(e.names[:0], maps.Keys(values))
	slices.Sort(e.names)
	return e.names
}

// withheld reports whether a header of an event is left out, because its name has a meaning for consumers.
func withheld(name string) bool {
	return strings.EqualFold(name, bodyField) || strings.EqualFold(name, contentType) ||
		len(name) >= len(attributePrefix) && strings.EqualFold(name[:len(attributePrefix)], attributePrefix)
}

package editor

import (
	"strings"

	"github.com/outboxgen/outboxgen/generator/spec"
)

// kind is what the value of a node looks like.
type kind int

const (
	empty kind = iota
	scalar
	mapping
	sequence
)

// node is a value of the file with its key, if it is in a mapping. The tree is what the text looks like, also if it is
// not valid YAML: the editor needs it for text that is being typed.
type node struct {
	parent   *node
	slot     *spec.Slot // what can stand here, nil if nothing can
	indent   int        // of the key, or of the dash of an item, in block style
	key      span       // with its quotes; empty for items and for the root
	name     string     // of the key
	colon    bool       // the key has one
	item     bool       // of a list
	kind     kind
	flow     bool // written with brackets
	closed   bool // of flow style: the bracket at the end is there
	comma    bool // of flow style: the last thing in it is a comma, or nothing is in it
	value    span // of a scalar with its quotes, or of flow style with its brackets
	quote    byte // of a scalar: " ' | > or 0
	text     string
	children []*node
	end      int // of all that belongs to it
}

// add appends a child.
func (n *node) add(child *node) *node {
	child.parent = n
	if child.item {
		child.slot = n.slot.Each()
	} else if n.slot != nil {
		child.slot = n.slot.Under(child.name)
	}
	n.children = append(n.children, child)
	return child
}

// child returns the value of a key, nil if there is none.
func (n *node) child(name string) *node {
	if n == nil {
		return nil
	}
	for _, c := range n.children {
		if c.name == name && c.colon {
			return c
		}
	}
	return nil
}

// path returns the names above n and its own; "" for items.
func (n *node) path() []string {
	if n.parent == nil {
		return nil
	}
	return append(n.parent.path(), n.name)
}

// start returns where n begins.
func (n *node) start() int {
	if n.key.end > n.key.start || n.colon {
		return n.key.start
	}
	return n.value.start
}

// walk calls do for n and all below it, in their order.
func (n *node) walk(do func(*node)) {
	do(n)
	for _, c := range n.children {
		c.walk(do)
	}
}

// finish sets the ends.
func (n *node) finish() int {
	n.end = max(n.end, n.key.end, n.value.end)
	for _, c := range n.children {
		n.end = max(n.end, c.finish())
	}
	return n.end
}

// inner returns the part of a scalar between its quotes.
func (n *node) inner() span {
	s := n.value
	if n.quote == '"' || n.quote == '\'' {
		s.start++
		if n.closed {
			s.end--
		}
	}
	return s
}

// plainText returns what the raw text of a scalar says.
func plainText(raw string, quote byte) string {
	switch quote {
	case '\'':
		return strings.ReplaceAll(raw, "''", "'")
	case '"':
		return unescape(raw)
	}
	return raw
}

// unescape reads the escapes that occur in the names, types and templates of an outbox.yaml; others stay.
func unescape(raw string) string {
	if !strings.Contains(raw, `\`) {
		return raw
	}
	return strings.NewReplacer(`\\`, `\`, `\"`, `"`, `\/`, `/`).Replace(raw)
}

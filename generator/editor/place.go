package editor

import (
	"slices"
	"strings"

	"github.com/outboxgen/outboxgen/generator/spec"
)

// place is where the cursor is: what would be written there. Its nodes are those of the text before the cursor.
type place struct {
	node  *node // whose value is written, or to which a key is added
	key   bool  // a key of node can be written
	value bool  // the value of node can be written
	flow  bool  // in brackets
	word  span  // what stands there, up to the cursor and a bit behind it
	quote byte  // of word, which is the text behind it
}

// placeAt returns the place at an offset; ok is false where nothing can be completed, as in a comment.
func (d *Document) placeAt(offset int) (p place, ok bool) {
	s := scan(d.src[:offset])
	p.word = span{offset, offset}
	switch start := s.lineStart(offset); {
	case s.rest:
		return p, false
	case s.open != nil:
		ok = p.inFlow(s.open, offset)
	case strings.TrimLeft(d.src[start:offset], " ") == "":
		s.popTo(offset-start, false)
		p.node, p.key, p.value = s.top(), true, s.top().kind == empty && s.top().colon
		ok = p.node.kind == mapping || p.node.kind == empty
	default:
		ok = p.inBlock(s.last, start, offset)
	}
	if !ok || p.word.end < offset {
		return p, false
	}
	if p.quote != 0 {
		p.word.start++
	}
	for p.word.end < len(d.src) && wordByte(d.src[p.word.end]) {
		p.word.end++
	}
	return p, true
}

func (p *place) inFlow(open *node, offset int) bool {
	p.node, p.flow = open, true
	switch last := lastOf(open); {
	case open.comma && open.kind == mapping:
		p.key = true
	case open.comma:
		p.node, p.value = open.add(&node{item: true}), true
	case last.item || last.colon:
		p.node, p.value = last, true
		p.at(last, offset)
	default:
		p.key, p.word = true, last.key
	}
	return true
}

func lastOf(n *node) *node {
	if len(n.children) == 0 {
		return n
	}
	return n.children[len(n.children)-1]
}

// at sets the word to the scalar of n.
func (p *place) at(n *node, offset int) {
	if n.kind != scalar {
		return
	}
	p.word, p.quote = n.value, n.quote
	if n.quote != 0 && n.closed && n.value.end <= offset { // behind the quote
		p.word.end = -1
	}
}

// inBlock sets the place in a line that begins at start, and in which n was scanned last.
func (p *place) inBlock(n *node, start, offset int) bool {
	p.node = n
	switch {
	case n.flow || n.parent == nil:
		return false
	case n.item:
		p.key, p.value = true, true
		p.at(n, offset)
	case n.colon && n.kind == empty:
		p.value = true
		return n.key.end+1 < offset
	case n.colon:
		p.value, p.key = true, n.key.start < start
		p.at(n, offset)
	default:
		p.node, p.key = n.parent, true
		p.at(n, offset)
	}
	return true
}

// same returns the node of the whole text that stands where n stands in a part of it, nil if there is none.
func (r *result) same(n *node) *node {
	if n.parent == nil {
		return r.tree
	}
	outer := r.same(n.parent)
	if outer == nil {
		return nil
	}
	if n.item {
		if i := slices.Index(n.parent.children, n); i < len(outer.children) {
			return outer.children[i]
		}
		return nil
	}
	return outer.child(n.name)
}

// owner returns the topic that n is in, and its full name; nil for none.
func topicOf(n *node) (topic *node, name string) {
	for ; n != nil && n.parent != nil; n = n.parent {
		if slotOf(n.parent).Declares == spec.TopicThing {
			return n, fullName(n, spec.TopicThing)
		}
	}
	return nil, ""
}

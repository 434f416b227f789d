package evolve

import (
	"fmt"

	"github.com/outboxgen/outboxgen/generator/diag"
	"github.com/outboxgen/outboxgen/generator/model"
	"github.com/outboxgen/outboxgen/generator/spec"
)

// place tells where the parts of a topic are. A part that the YAML does not have is at the name of the topic.
type place struct{ of *spec.Topic }

func (c *comparison) at(t *model.Topic) place {
	if s := c.topics[t.FullName()]; s != nil {
		return place{s}
	}
	return place{&spec.Topic{}}
}

func (p place) name() diag.Pos { return p.of.Name.Pos }

func (p place) version() diag.Pos { return p.or(p.of.Version.Pos) }

func (p place) or(pos diag.Pos) diag.Pos {
	if pos.IsValid() {
		return pos
	}
	return p.name()
}

// namespacePos returns where the namespace of a topic is, or where namespaces are.
func (c *comparison) namespacePos(topic string) diag.Pos {
	for _, ns := range c.source.Namespaces.Items {
		if len(topic) > len(ns.Name.V) && topic[:len(ns.Name.V)+1] == ns.Name.V+"/" {
			return ns.Name.Pos
		}
	}
	return c.source.Namespaces.Pos
}

// raised compares t with an older version of it.
func (c *comparison) raised(old, t *model.Topic) {
	if old.Delivery != t.Delivery {
		c.find(c.at(t).or(c.at(t).of.Delivery.Pos), diag.ChangeDelivery, diag.Warning,
			"delivery: topic %s is now %s and was %s in version %d: events of that version that are not delivered yet will "+
				"wait forever, so drain them first, or declare a new topic", t.FullName(), t.Delivery, old.Delivery, old.Version)
	}
}

// topic compares t with the same version of it.
func (c *comparison) topic(old, t *model.Topic) {
	c.now, c.visited = t, make(map[[2]*model.Type]bool)
	at := c.at(t)
	s := at.of
	if old.Delivery != t.Delivery {
		c.changed(at.or(s.Delivery.Pos), diag.ChangeDelivery, "delivery: changed from %s to %s", old.Delivery, t.Delivery)
	}
	if was, is := fieldName(old.Tenant), fieldName(t.Tenant); was != is {
		c.changed(at.or(s.Tenant.Pos), diag.ChangeTenant, "tenant: %s", changes(was, is))
	}
	if was, is := text(old.DedupeKey), text(t.DedupeKey); was != is {
		c.changed(at.or(s.DedupeKey.Pos), diag.ChangeDedupeKey, "dedupe_key: %s", changes(was, is))
	}
	if was, is := text(old.PartitionKey), text(t.PartitionKey); was != is {
		c.changed(at.or(s.PartitionKey.Pos), diag.ChangePartitionKey, "partition_key: %s", changes(was, is))
	}
	if was, is := entity(old.Entity), entity(t.Entity); was != is {
		c.changed(at.or(s.Entity.Pos), diag.ChangeEntity, "entity: %s", changes(was, is))
	}
	if old.Sealed != t.Sealed {
		c.changed(at.or(s.Sealed.Pos), diag.ChangeSealed, "sealed: the payload is now %s and was %s", openOrSealed(t.Sealed),
			openOrSealed(old.Sealed))
	}
	// A log topic that gets a publish loses no reader.
	if was, is := destination(old.Publish), destination(t.Publish); was != is && (was != "" || t.Delivery == model.Queue) {
		c.changed(at.or(s.Publish.Pos), diag.ChangePublish, "publish: %s", changes(was, is))
	}
	if was, is := wireName(old), wireName(t); was != is && old.Publish != nil && t.Publish != nil {
		c.changed(at.or(s.WireName.Pos), diag.ChangePublish, "wire_name: %s", changes(was, is))
	}
	c.fields(old.Fields, t.Fields, section{what: "payload", pos: at.or(s.Payload.Pos), fields: s.Payload.Items})
}

// changes says how a text changed; "" is one that is absent.
func changes(was, is string) string {
	switch {
	case was == "":
		return fmt.Sprintf("added as %q", is)
	case is == "":
		return fmt.Sprintf("%q was removed", was)
	}
	return fmt.Sprintf("changed from %q to %q", was, is)
}

func fieldName(f *model.Field) string {
	if f == nil {
		return ""
	}
	return f.Name
}

func text(t *model.Template) string {
	if t == nil {
		return ""
	}
	return t.Text
}

func entity(e *model.Entity) string {
	if e == nil {
		return ""
	}
	of := e.Type + " " + e.ID.Text
	if e.Version != nil {
		of += " {" + e.Version.Name + "}"
	}
	return of
}

func wireName(t *model.Topic) string {
	if t.Publish == nil {
		return ""
	}
	return t.Publish.WireName
}

func destination(p *model.Publication) string {
	if p == nil {
		return ""
	}
	to := string(p.Broker) + " " + p.To()
	if p.Key != nil {
		to += " by " + p.Key.Text
	}
	if p.Tombstone {
		to += " as tombstones" // a record without a value deletes others, and consumers must take the payload from a header
	}
	return to
}

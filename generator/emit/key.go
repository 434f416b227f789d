package emit

import (
	"slices"

	"github.com/dave/jennifer/jen"

	"github.com/outboxgen/outboxgen/generator/model"
)

// payload names the receiver of payload methods and the parameter that holds a payload.
const payload = "p"

// untyped names the parameter that holds a payload whose type the runtime does not know.
const untyped = "untyped"

// typed declares p, the payload of t, if it is used.
func typed(t *model.Topic, used bool) jen.Code {
	if !used {
		return jen.Null()
	}
	return jen.Id(payload).Op(":=").Id(untyped).Assert(jen.Op("*").Id(t.GoName))
}

// keysHaveField reports whether a key of t has a part that comes from the payload.
func keysHaveField(t *model.Topic) bool {
	if t.Tenant != nil || t.DedupeKey != nil || hasField(t.PartitionKey) {
		return true
	}
	if slices.ContainsFunc(t.Limits, func(l model.Limit) bool { return hasField(l.Key) }) {
		return true
	}
	return t.Entity != nil && (hasField(t.Entity.ID) || t.Entity.Version != nil)
}

func hasField(t *model.Template) bool {
	return t != nil && slices.ContainsFunc(t.Segments, func(s model.Segment) bool { return s.Field != nil })
}

func keysFunc(t *model.Topic) string      { return lowerFirst(t.GoName) + "Keys" }
func dedupeKeyFunc(t *model.Topic) string { return lowerFirst(t.GoName) + "DedupeKey" }

// addKeys declares the functions that render the keys that the topic has.
func addKeys(g *jen.Group, t *model.Topic) {
	if t.DedupeKey != nil {
		addComment(g, "DedupeKey returns "+quoted(t.DedupeKey.Text)+
			": a second event with the same key is a duplicate. It is \"\" when one of its fields is empty; enqueue then "+
			"returns an error.")
		g.Func().Params(jen.Id(payload).Id(t.GoName)).Id("DedupeKey").Params().String().Block(
			jen.Return(jen.Id(dedupeKeyFunc(t)).Call(jen.Op("&").Id(payload)).Dot("String").Call()),
		)
		g.Line()
		g.Func().Id(dedupeKeyFunc(t)).Params(jen.Id(payload).Op("*").Id(t.GoName)).Qual(eventkeyPath, "Key").Block(
			jen.Return(newKey(t.DedupeKey)),
		)
		g.Line()
	}
	if !hasKeys(t) {
		return
	}
	g.Func().Id(keysFunc(t)).Params(jen.Id(untyped).Any()).Qual(outboxPath, "Keys").Block(
		typed(t, keysHaveField(t)),
		jen.Return(jen.Qual(outboxPath, "Keys").Add(members(keyMembers(t)))),
	)
	g.Line()
}

// hasKeys reports whether the events of t have a tenant, a key, an entity or keys of limits.
func hasKeys(t *model.Topic) bool {
	return t.Tenant != nil || t.DedupeKey != nil || t.PartitionKey != nil || t.Entity != nil || hasLimitKeys(t)
}

func keyMembers(t *model.Topic) []member {
	list := eventKeyMembers(t)
	if keys := limitKeys(t); len(keys) > 0 {
		list = append(list, member{"Limits", jen.Index().Qual(eventkeyPath, "Key").Custom(
			jen.Options{Open: "{", Close: "}", Separator: ",", Multi: len(keys) > 1}, keys...,
		)})
	}
	return list
}

// eventKeyMembers are the keys that the row of an event holds.
func eventKeyMembers(t *model.Topic) []member {
	var list []member
	if t.Tenant != nil {
		list = append(list, member{"TenantID", jen.Qual(outboxPath, "Tenant").Call(jen.Id(payload).Dot(t.Tenant.GoName))})
	}
	if t.DedupeKey != nil {
		list = append(list, member{"Dedupe", jen.Id(dedupeKeyFunc(t)).Call(jen.Id(payload))})
	}
	if t.PartitionKey != nil {
		list = append(list, member{"Partition", newKey(t.PartitionKey)})
	}
	if t.Entity == nil {
		return list
	}
	list = append(list, member{"EntityType", jen.Lit(t.Entity.Type)})
	if t.Entity.ID != nil {
		list = append(list, member{"EntityID", newKey(t.Entity.ID)})
	}
	if version := t.Entity.Version; version != nil {
		value := jen.Id(payload).Dot(version.GoName)
		if version.Type.Kind != model.Int64 {
			value = jen.Int64().Parens(value)
		}
		list = append(list, member{"EntityVersion", value})
	}
	return list
}

// newKey builds the key of a template: up to two parts on one line, else one line per part.
func newKey(t *model.Template) *jen.Statement {
	parts := make([]jen.Code, len(t.Segments))
	for i, s := range t.Segments {
		parts[i] = keyPart(s)
	}
	if len(parts) <= 2 {
		return jen.Qual(eventkeyPath, "NewKey").Call(parts...)
	}
	return jen.Qual(eventkeyPath, "NewKey").Custom(callLines(), parts...)
}

func keyPart(s model.Segment) *jen.Statement {
	if s.Field == nil {
		return jen.Qual(eventkeyPath, "LiteralPart").Call(jen.Lit(s.Prefix))
	}
	part := jen.Qual(eventkeyPath, partName(s.Field.Type.Base())).Call(jen.Lit(s.Field.Name),
		jen.Id(payload).Dot(s.Field.GoName))
	if s.Prefix != "" || s.Suffix != "" {
		part.Dot("Affix").Call(jen.Lit(s.Prefix), jen.Lit(s.Suffix))
	}
	return part
}

func partName(kind model.Kind) string {
	switch kind {
	case model.UUID:
		return "UUIDPart"
	case model.Int32, model.Int64:
		return "IntPart"
	case model.Date:
		return "DatePart"
	}
	return "StringPart" // strings and enums
}

// member is one "Name: value" of a composite literal; jennifer's Dict would sort them.
type member struct {
	name  string
	value jen.Code
}

// members renders {Name: value, ...} in the given order, with a line per member if there are several.
func members(list []member) *jen.Statement {
	items := make([]jen.Code, len(list))
	for i, m := range list {
		items[i] = jen.Id(m.name).Op(":").Add(m.value)
	}
	return jen.Custom(jen.Options{Open: "{", Close: "}", Separator: ",", Multi: len(items) > 1}, items...)
}

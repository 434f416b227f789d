package emit

import (
	"fmt"
	"slices"

	"github.com/dave/jennifer/jen"

	"github.com/outboxgen/outboxgen/generator/model"
)

func publishKeyFunc(t *model.Topic) string     { return lowerFirst(t.GoName) + "PublishKey" }
func publishHeadersFunc(t *model.Topic) string { return lowerFirst(t.GoName) + "PublishHeaders" }
func publishDestinationFunc(t *model.Topic) string {
	return lowerFirst(t.GoName) + "PublishDestination"
}
func publicationVar(t *model.Topic) string { return lowerFirst(t.GoName) + "Publication" }

// destinationForms name the destinations of the brokers.
var destinationForms = map[model.Broker]string{
	model.Kafka: "Kafka topic %s", model.NATS: "NATS subject %s", model.AMQP: "RabbitMQ address %s",
	model.Redis: "Redis stream %s", model.Webhook: "webhook %s",
}

// destinationText says where p goes.
func destinationText(p *model.Publication) string {
	switch form, builtIn := destinationForms[p.Broker]; {
	case p.Field != nil:
		return fmt.Sprintf("the %s destination in field %s of each event", p.Broker, p.Field.Name)
	case builtIn:
		return fmt.Sprintf(form, p.Destination)
	default:
		return string(p.Broker) + " destination " + p.Destination
	}
}

// addPublication declares where the events of t are published, and the methods that its publication needs.
func addPublication(g *jen.Group, t *model.Topic) {
	p := t.Publish
	if p == nil || t.Unpublished() {
		return
	}
	list := []member{{"Broker", jen.Lit(string(p.Broker))}}
	if p.Field != nil {
		list = append(list, member{"DestinationOf", jen.Id(publishDestinationFunc(t))})
	} else {
		list = append(list, member{"Destination", jen.Lit(p.Destination)})
	}
	as := ""
	if p.WireName != "" {
		list = append(list, member{"WireName", jen.Lit(p.WireName)})
		as = ", as " + p.WireName
	}
	if p.Key != nil {
		list = append(list, member{"Key", jen.Id(publishKeyFunc(t))})
	}
	if len(p.Headers) > 0 {
		list = append(list, member{"Headers", jen.Id(publishHeadersFunc(t))})
	}
	if p.Tombstone {
		list = append(list, member{"Tombstone", jen.True()})
		as += ", as tombstones"
	}
	addComment(g, publicationVar(t)+" says where "+t.FullName()+" is published: to "+destinationText(p)+as+".")
	g.Var().Id(publicationVar(t)).Op("=").Qual(publishPath, "Publication").Add(members(list))
	g.Line()

	if p.Field != nil {
		g.Func().Id(publishDestinationFunc(t)).Params(jen.Id(untyped).Any()).String().Block(
			typed(t, true),
			jen.Return(fieldText(p.Field)),
		)
		g.Line()
	}
	if p.Key != nil {
		g.Func().Id(publishKeyFunc(t)).Params(jen.Id(untyped).Any()).Qual(eventkeyPath, "Key").Block(
			typed(t, hasField(p.Key)),
			jen.Return(newKey(p.Key)),
		)
		g.Line()
	}
	if len(p.Headers) > 0 {
		addPublishHeaders(g, t)
	}
}

func addPublishHeaders(g *jen.Group, t *model.Topic) {
	items := make([]jen.Code, len(t.Publish.Headers))
	used := false
	for i, h := range t.Publish.Headers {
		items[i] = jen.Lit(h.Name).Op(":").Add(headerValue(h))
		if slices.ContainsFunc(h.Parts, func(part model.HeaderPart) bool { return part.Field != nil }) {
			used = true
		}
	}
	g.Func().Id(publishHeadersFunc(t)).Params(jen.Id(untyped).Any()).Map(jen.String()).String().Block(
		typed(t, used),
		jen.Return(jen.Map(jen.String()).String().Custom(
			jen.Options{Open: "{", Close: "}", Separator: ",", Multi: len(items) > 1}, items...,
		)),
	)
	g.Line()
}

// headerValue concatenates the parts of a header.
func headerValue(h *model.Header) *jen.Statement {
	if len(h.Parts) == 0 {
		return jen.Lit("")
	}
	var value *jen.Statement
	for _, part := range h.Parts {
		text := jen.Lit(part.Literal)
		if part.Field != nil {
			text = fieldText(part.Field)
		}
		if value == nil {
			value = text
		} else {
			value.Op("+").Add(text)
		}
	}
	return value
}

// fieldText renders the value of a required scalar field as text: like its JSON without quotes, and a duration like
// 1m30s.
func fieldText(f *model.Field) *jen.Statement {
	value := jen.Id(payload).Dot(f.GoName)
	if f.Type.Kind == model.Named && f.Type.Base() == model.Int64 {
		value = jen.Int64().Parens(value)
	}
	switch f.Type.Base() {
	case model.Bool:
		return jen.Qual(strconvPath, "FormatBool").Call(value)
	case model.Int32:
		return jen.Qual(strconvPath, "FormatInt").Call(jen.Int64().Parens(value), jen.Lit(10))
	case model.Int64:
		return jen.Qual(strconvPath, "FormatInt").Call(value, jen.Lit(10))
	case model.Float64:
		return jen.Qual(strconvPath, "FormatFloat").Call(value, jen.LitRune('g'), jen.Lit(-1), jen.Lit(64))
	case model.Timestamp:
		return value.Dot("Format").Call(jen.Qual(timePath, "RFC3339Nano"))
	case model.UUID, model.Date, model.Duration:
		return value.Dot("String").Call()
	}
	if f.Type.Kind == model.Named {
		return jen.String().Parens(value)
	}
	return value
}

// publishTie returns the call of Publish, of the package of the machine, that ties t to its publisher.
func publishTie(machine string, t *model.Topic) jen.Code {
	return jen.Qual(machine, "Publish").Call(jen.Id(topicVar(t)), jen.Id(publicationVar(t)))
}

// publishersOf names the publishers of topics: cfg.Publishers["kafka"].
func publishersOf(topics []*model.Topic) string {
	var names []string
	for _, t := range topics {
		if name := `cfg.Publishers["` + string(t.Publish.Broker) + `"]`; !slices.Contains(names, name) {
			names = append(names, name)
		}
	}
	return enumerate(names)
}

// addRelay declares the constructor of a listener that publishes.
func (e *emitter) addRelay(g *jen.Group, l *model.Listener) {
	name := "New" + l.GoName + "Listener"
	doc := name + " returns listener " + l.Name +
		", which reads the log in the database of pool with its own cursor and publishes the events with " +
		publishersOf(l.Topics) + ", in order per partition key. Call Run on it. The error names the field of cfg that is " +
		"out of bounds or has no publisher."
	addComment(g, doc, userDoc("The listener", l.Doc))
	args := []jen.Code{jen.Id("pool"), e.listenerSpec(l), jen.Id("cfg")}
	for _, t := range l.Topics {
		args = append(args, publishTie(listenerPath, t))
	}
	g.Func().Id(name).Params(
		jen.Id("pool").Op("*").Qual(pgxpoolPath, "Pool"),
		jen.Id("cfg").Qual(listenerPath, "Config"),
	).Params(jen.Op("*").Qual(listenerPath, "Listener"), jen.Error()).Block(
		jen.Return(jen.Qual(listenerPath, "New").Custom(callLines(), args...)),
	)
	g.Line()
}

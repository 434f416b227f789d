package emit

import (
	"fmt"

	"github.com/dave/jennifer/jen"

	"github.com/outboxgen/outboxgen/generator/model"
)

func handlersName(ns *model.Namespace) string      { return ns.GoName + "Handlers" }
func handlerName(ns *model.Namespace) string       { return ns.GoName + "Handler" }
func unimplementedName(ns *model.Namespace) string { return "Unimplemented" + handlersName(ns) }
func handleName(t *model.Topic) string             { return "Handle" + t.GoName }

// namespace renders the file of a namespace: what it takes to handle its queue topics.
func (e *emitter) namespace(ns *model.Namespace, queue []*model.Topic) ([]byte, error) {
	f := e.newFile("namespace " + ns.Name)
	g := f.Group
	addHandlers(g, ns, queue)
	addUnimplemented(g, ns, queue)
	addDispatcher(g, ns, queue)
	return render(f)
}

func addHandlers(g *jen.Group, ns *model.Namespace, queue []*model.Topic) {
	name := handlersName(ns)
	addComment(g, handlersDoc(name, ns))
	g.Type().Id(name).InterfaceFunc(func(g *jen.Group) {
		for i, t := range queue {
			if i > 0 {
				g.Line()
			}
			addComment(g, fmt.Sprintf("%s handles one %s event. It may run more than once for an event: nil acks it, an error has it retried up to %s, outbox.Permanent(err) makes it a dead letter at once.",
				handleName(t), t.FullName(), attempts(t.Retry.MaxAttempts)))
			g.Id(handleName(t)).Params(handleParams(t)...).Error()
		}
	})
	g.Line()
}

func attempts(n int) string {
	if n == 1 {
		return "1 attempt"
	}
	return fmt.Sprintf("%d attempts", n)
}

// handlersDoc says what the interface is, then what the user says about the namespace.
func handlersDoc(name string, ns *model.Namespace) string {
	doc := name + " handles the queue topics of namespace " + ns.Name + "."
	if user := fieldDoc("The namespace", ns.Doc); user != "" {
		doc += " " + user
	}
	return doc + " A new topic adds a method, so that the build fails until it is handled; embed " + unimplementedName(ns) +
		" to opt out. Methods run concurrently."
}

func handleParams(t *model.Topic) []jen.Code {
	return []jen.Code{
		jen.Id("ctx").Qual(contextPath, "Context"),
		jen.Id("d").Qual(outboxPath, "Delivery").Types(jen.Id(t.GoName)),
	}
}

func addUnimplemented(g *jen.Group, ns *model.Namespace, queue []*model.Topic) {
	name := unimplementedName(ns)
	addComment(g, name+" may be embedded to handle some topics only: its methods return an error that wraps outbox.ErrUnimplemented, so that the events of the others are retried, then dead letters, and never lost.")
	g.Type().Id(name).Struct()
	g.Line()
	for _, t := range queue {
		addComment(g, handleName(t)+" returns an error: nobody handles "+t.FullName()+".")
		g.Func().Params(jen.Id(name)).Id(handleName(t)).Params(
			jen.Qual(contextPath, "Context"),
			jen.Qual(outboxPath, "Delivery").Types(jen.Id(t.GoName)),
		).Error().Block(
			jen.Return(jen.Qual(outboxPath, "Unimplemented").Call(jen.Lit(t.FullName()))),
		)
		g.Line()
	}
}

func addDispatcher(g *jen.Group, ns *model.Namespace, queue []*model.Topic) {
	name := "New" + ns.GoName + "Dispatcher"
	addComment(g, name+" returns a dispatcher that claims the events of namespace "+ns.Name+" from the database of pool and has h handle them. Call Run on it. The error names the field of cfg that is out of bounds, or says that h is nil.")
	var handles []jen.Code
	for _, t := range queue {
		handles = append(handles, jen.Qual(outboxPath, "Handle").Call(
			jen.Id(topicVar(t)), jen.Id("h"), jen.Id(handlersName(ns)).Dot(handleName(t)),
		))
	}
	g.Func().Id(name).Params(
		jen.Id("pool").Op("*").Qual(pgxpoolPath, "Pool"),
		jen.Id("h").Id(handlersName(ns)),
		jen.Id("cfg").Qual(outboxPath, "DispatcherConfig"),
	).Params(jen.Op("*").Qual(outboxPath, "Dispatcher"), jen.Error()).Block(
		jen.Return(jen.Qual(outboxPath, "NewDispatcher").Custom(callLines("pool", "cfg"), handles...)),
	)
	g.Line()
}

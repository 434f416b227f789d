package emit

import (
	"strconv"

	"github.com/dave/jennifer/jen"

	"github.com/outboxgen/outboxgen/generator/model"
)

// topic renders the file of one topic: its identity, its payload and the functions that enqueue it.
func (e *emitter) topic(t *model.Topic) ([]byte, error) {
	f := e.newFile("topic " + t.FullName())
	g := f.Group
	e.addTopicVar(g, t)
	e.addPayload(g, t)
	addKeys(g, t)
	addPublication(g, t)
	e.addPayloadMasking(g, t.GoName, t.Fields, t.Sealed)
	addEnqueue(g, t)
	return render(f)
}

// addPayload declares the payload of t with its rules.
func (e *emitter) addPayload(g *jen.Group, t *model.Topic) {
	e.addStruct(g, t.GoName, "the payload of "+t.FullName(), t.Doc, t.Fields)
	e.addPatterns(g, t.GoName, t.Fields)
	e.addValidate(g, payload, t.GoName, t.FullName(), t.Fields)
}

func topicVar(t *model.Topic) string { return t.GoName + "Topic" }

func (e *emitter) addTopicVar(g *jen.Group, t *model.Topic) {
	list := []member{
		{"Schema", jen.Lit(e.model.Schema)},
		{"Namespace", jen.Lit(t.Namespace.Name)},
		{"Name", jen.Lit(t.Name)},
	}
	if len(t.Renamed) > 0 {
		list = append(list, member{"RenamedFrom", renamedFrom(t)})
	}
	list = append(list, member{"Version", jen.Lit(t.Version)}, member{"Strict", jen.True()})
	switch {
	case t.Sealed:
		list = append(list, member{"Sealed", jen.Qual(outboxPath, "SealedPayload").Call()})
	case model.HasSealed(t.Fields):
		list = append(list, member{"Sealed", jen.Qual(outboxPath, "SealedFields").Call()})
	}
	if isLog(t) {
		list = append(list, member{"Log", jen.True()})
	}
	if !t.Wake {
		list = append(list, member{"Silent", jen.True()})
	}
	if t.Fairness == model.FairnessTenant {
		list = append(list, member{"Fairness", jen.Qual(outboxPath, "FairnessTenant")})
	}
	if len(t.Limits) > 0 {
		list = append(list, member{"Limits", limits(t.Limits)})
	}
	if t.Batch.Size > 0 {
		list = append(list, member{"Batch", batch(t.Batch)})
	}
	if !isLog(t) {
		list = append(list, member{"Retry", retry(t.Retry)}, member{"Lease", duration(t.Lease)})
		if t.MaxLag > 0 {
			list = append(list, member{"MaxLag", duration(t.MaxLag)})
		}
	}
	list = append(list, member{"Retention", retention(t.Retention)})
	if hasKeys(t) {
		list = append(list, member{"Keys", jen.Id(keysFunc(t))})
	}
	list = append(list, history(t)...)

	addComment(g, topicVarDoc(t))
	g.Var().Id(topicVar(t)).Op("=").Qual(outboxPath, "NewTopic").Types(jen.Id(t.GoName)).Call(
		jen.Qual(outboxPath, "TopicSpec").Add(members(list)),
	)
	g.Line()
}

// renamedFrom writes the earlier names of t on one line.
func renamedFrom(t *model.Topic) *jen.Statement { return texts(t.Renamed) }

// texts writes a list of texts on one line.
func texts(list []string) *jen.Statement {
	values := make([]jen.Code, len(list))
	for i, text := range list {
		values[i] = jen.Lit(text)
	}
	return jen.Index().String().Values(values...)
}

func isLog(t *model.Topic) bool { return t.Delivery == model.Log }

// retention writes how long events are kept on one line.
func retention(r model.Retention) *jen.Statement {
	kept := jen.Id("Delivered").Op(":").Add(duration(r.Delivered))
	if r.Delivered == 0 {
		kept = jen.Id("DeleteOnAck").Op(":").True()
	}
	return jen.Qual(outboxPath, "Retention").Values(kept, jen.Id("Dead").Op(":").Add(duration(r.Dead)))
}

// retry writes the bounds of retries on one line.
func retry(r model.Retry) *jen.Statement {
	return jen.Qual(outboxPath, "Retry").Values(
		jen.Id("MaxAttempts").Op(":").Lit(r.MaxAttempts),
		jen.Id("BaseDelay").Op(":").Add(duration(r.BaseDelay)),
		jen.Id("MaxDelay").Op(":").Add(duration(r.MaxDelay)),
	)
}

func topicIdentity(t *model.Topic) string {
	return topicVar(t) + " identifies " + t.FullName() + ", payload version " + strconv.Itoa(t.Version)
}

func topicVarDoc(t *model.Topic) string {
	doc := topicIdentity(t)
	waker := "dispatcher"
	if isLog(t) {
		waker = "listener"
		switch names := listenerNames(t); len(names) {
		case 0:
			doc += ", a log topic that no listener reads"
		case 1:
			doc += ", a log topic that listener " + names[0] + " reads"
		default:
			doc += ", a log topic that listeners " + enumerate(names) + " read"
		}
	}
	doc += "."
	if !t.Wake {
		doc += " Enqueueing an event does not wake a " + waker + ": the event waits for the next poll."
	}
	return doc
}

// listenerNames are the YAML names of the listeners that read t.
func listenerNames(t *model.Topic) []string {
	names := make([]string, len(t.Listeners))
	for i, l := range t.Listeners {
		names[i] = l.Name
	}
	return names
}

// enqueueOne and enqueueMany are the signatures of the ways to enqueue that an Enqueuer has too.

func enqueueOne(t *model.Topic) *jen.Statement {
	return jen.Id(enqueueName(t)).
		Params(enqueueParams(jen.Id(payload).Id(t.GoName))...).
		Params(jen.Qual(outboxPath, "Receipt"), jen.Error())
}

func enqueueMany(t *model.Topic) *jen.Statement {
	return jen.Id(enqueueName(t)+"Many").
		Params(enqueueParams(jen.Id(payload+"s").Index().Id(t.GoName))...).
		Params(jen.Index().Qual(outboxPath, "Receipt"), jen.Error())
}

func enqueueName(t *model.Topic) string { return "Enqueue" + t.GoName }

func enqueueParams(payload jen.Code) []jen.Code {
	return []jen.Code{
		jen.Id("ctx").Qual(contextPath, "Context"), jen.Id("tx").Qual(outboxPath, "Tx"), payload, enqueueOptions(),
	}
}

func enqueueOptions() *jen.Statement {
	return jen.Id("opts").Op("...").Qual(outboxPath, "EnqueueOption")
}

func untypedTopic(t *model.Topic) *jen.Statement { return jen.Id(topicVar(t)).Dot("Untyped").Call() }

// addEnqueue declares the three ways to enqueue.
func addEnqueue(g *jen.Group, t *model.Topic) {
	one, many, inBatch := enqueueName(t), enqueueName(t)+"Many", enqueueName(t)+"InBatch"

	doc := one + " writes one " + t.FullName() + " event with tx: it is delivered if and only if tx commits. "
	if isLog(t) {
		doc = one + " appends one " + t.FullName() +
			" event to the log with tx: listeners read it if and only if tx commits. "
	}
	if t.DedupeKey != nil {
		doc += "If an event with its dedupe key already exists, nothing is written and the receipt has Duplicate set. "
	}
	addComment(g, doc+"An error leaves tx usable unless it came from PostgreSQL.")
	g.Func().Add(enqueueOne(t)).
		Block(jen.Return(untypedTopic(t).Dot("Enqueue").Call(jen.Id("ctx"), jen.Id("tx"), jen.Op("&").Id(payload),
			jen.Id("opts").Op("..."))))
	g.Line()

	addComment(g, many+" writes one event for each of ps, with one statement per 1,000. The contract is that of "+one+
		". Receipts are in the order of ps. If one payload is invalid, no event is written.")
	g.Func().Add(enqueueMany(t)).
		Block(jen.Return(untypedTopic(t).Dot("EnqueueMany").Call(jen.Id("ctx"), jen.Id("tx"), jen.Id(payload+"s"),
			jen.Id("opts").Op("..."))))
	g.Line()

	addComment(g,
		inBatch+" adds the event to b. Send b inside your transaction; the event costs no extra round trip. The receipt is "+
			"filled in when the results of b are read.")
	g.Func().Id(inBatch).
		Params(jen.Id("b").Op("*").Qual(pgxPath, "Batch"), jen.Id(payload).Id(t.GoName), enqueueOptions()).
		Params(jen.Op("*").Qual(outboxPath, "PendingReceipt"), jen.Error()).
		Block(jen.Return(untypedTopic(t).Dot("EnqueueInBatch").Call(jen.Id("b"), jen.Op("&").Id(payload),
			jen.Id("opts").Op("..."))))
	g.Line()
}

func quoted(text string) string { return `"` + text + `"` }

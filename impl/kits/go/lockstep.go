// A kit for Lockstep drivers in Go (1.18 or later), to be copied into the package.
//
// It reads messages, writes answers, numbers caches and snapshots, and refuses what it
// cannot answer. You write caches: a function that opens one from the config, and a
// method for each operation, which gets fields of the message and puts fields of the
// answer. Refuse before you change anything: it panics, and the kit recovers.

package main

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"math"
	"os"
	"strconv"
	"strings"
)

// Array has numbers in row-major order.
type Array struct {
	Shape []int
	Data  []float32
}

// Token is K or V of one token: [heads * dim].
type Token []float32

// Snapshot has the positions [Begin, End) of a cache.
type Snapshot struct {
	Begin, End int
	Content    any
}

// refusal is what Refuse panics with.
type refusal struct{ err, message string }

// Refuse answers an error in the place of all else, and ends the operation: "usage" if
// the call breaks a rule, or another of the README of drivers.
func Refuse(err, format string, arguments ...any) {
	panic(refusal{err, fmt.Sprintf(format, arguments...)})
}

func fail(format string, arguments ...any) { Refuse("failed", format, arguments...) }

// --- what is numbered ------------------------------------------------------------------

type table[T any] map[int]T

func (items table[T]) add(item T) int {
	number := 0
	for _, used := items[number]; used; _, used = items[number] {
		number++
	}
	items[number] = item
	return number
}

func (items table[T]) get(number int, name string) T {
	item, found := items[number]
	if !found {
		fail("%s: there is no number %d", name, number)
	}
	return item
}

type cache struct {
	kind    *Kind
	content any
}

type tables struct {
	caches    table[cache]
	snapshots table[Snapshot]
	saved     table[any]
}

// --- the fields of a message, or of a config -------------------------------------------

// Message is an object of JSON.
type Message struct {
	fields map[string]any
	tables *tables
}

func (message Message) get(name string) any {
	value, found := message.fields[name]
	if !found {
		fail("the message has no %s", name)
	}
	return value
}

func (message Message) IsNull(name string) bool { return message.get(name) == nil }

func (message Message) GetInteger(name string) int {
	return toInteger(message.get(name), name)
}

func (message Message) GetBoolean(name string) bool {
	truth, is := message.get(name).(bool)
	if !is {
		fail("%s is not true or false", name)
	}
	return truth
}

func (message Message) GetText(name string) string {
	text, is := message.get(name).(string)
	if !is {
		fail("%s is not a text", name)
	}
	return text
}

func (message Message) GetIntegers(name string) []int {
	integers := []int{}
	for _, item := range toList(message.get(name), name) {
		integers = append(integers, toInteger(item, name))
	}
	return integers
}

func (message Message) GetObject(name string) Message {
	fields, is := message.get(name).(map[string]any)
	if !is {
		fail("%s is not an object", name)
	}
	return Message{fields, message.tables}
}

func (message Message) GetArray(name string) Array {
	object := message.GetObject(name)
	array := Array{object.GetIntegers("shape"), nil}
	data := toList(object.get("data"), name)
	count := 1.0
	for _, size := range array.Shape {
		if size < 0 {
			fail("%s: a size is negative", name)
		}
		count *= float64(size)
	}
	if count != float64(len(data)) {
		fail("%s has %d numbers, not as many as its shape says", name, len(data))
	}
	for _, item := range data {
		array.Data = append(array.Data, toFloat(item, name))
	}
	return array
}

// GetTokens returns K or V; any shape but [1, heads, tokens, dim] is a mistake of usage.
func (message Message) GetTokens(name string, heads, dim int) []Token {
	array := message.GetArray(name)
	shape, data := array.Shape, array.Data
	if len(shape) != 4 || shape[0] != 1 || shape[1] != heads || shape[3] != dim {
		Refuse("usage", "%s: shape %v, not [1, %d, tokens, %d]", name, shape, heads, dim)
	}
	tokens := make([]Token, shape[2])
	for head := 0; head < heads; head++ {
		for place := range tokens {
			tokens[place] = append(tokens[place], data[:dim]...)
			data = data[dim:]
		}
	}
	return tokens
}

// GetSnapshot returns nil if the field is null.
func (message Message) GetSnapshot(name string) *Snapshot {
	if message.IsNull(name) {
		return nil
	}
	snapshot := message.tables.snapshots.get(message.GetInteger(name), name)
	return &snapshot
}

// UseSnapshot frees the number of a snapshot that is used up.
func (message Message) UseSnapshot(name string) {
	if message.GetSnapshot(name) != nil {
		delete(message.tables.snapshots, message.GetInteger(name))
	}
}

func (message Message) GetSaved(name string) any {
	return message.tables.saved.get(message.GetInteger(name), name)
}

func toList(value any, name string) []any {
	list, is := value.([]any)
	if !is {
		fail("%s is not a list", name)
	}
	return list
}

func toInteger(value any, name string) int {
	number, _ := value.(json.Number)
	integer, err := strconv.Atoi(number.String())
	if err != nil {
		fail("%s is not an integer", name)
	}
	return integer
}

func toFloat(value any, name string) float32 {
	switch each := value.(type) {
	case nil:
		return float32(math.NaN())
	case json.Number: // beyond float32 it is infinite, and an error
		number, _ := strconv.ParseFloat(each.String(), 32)
		return float32(number)
	case string:
		if each == "nan" || each == "inf" || each == "-inf" {
			number, _ := strconv.ParseFloat(each, 32)
			return float32(number)
		}
	}
	fail("%s has an item that is not a number", name)
	return 0
}

// --- the fields of an answer -----------------------------------------------------------

// Answer collects the fields of an answer.
type Answer struct {
	kind   *Kind
	tables *tables
	text   strings.Builder
}

// PutJSON puts anything.
func (answer *Answer) PutJSON(name, json string) {
	answer.text.WriteString("," + quote(name) + ":" + json)
}

func (answer *Answer) PutNull(name string) { answer.PutJSON(name, "null") }

func (answer *Answer) PutText(name, text string) { answer.PutJSON(name, quote(text)) }

func (answer *Answer) PutInteger(name string, number int) {
	answer.PutJSON(name, strconv.Itoa(number))
}

func (answer *Answer) PutBoolean(name string, truth bool) {
	answer.PutJSON(name, strconv.FormatBool(truth))
}

func (answer *Answer) PutIntegers(name string, integers []int) {
	answer.PutJSON(name, join(integers, strconv.Itoa))
}

func (answer *Answer) PutArray(name string, array Array) {
	answer.putData(name, array.Shape, join(array.Data, formatNumber))
}

// PutTokens puts K or V as [1, heads, tokens, dim].
func (answer *Answer) PutTokens(name string, heads, dim int, tokens []Token) {
	array := Array{[]int{1, heads, len(tokens), dim}, nil}
	for head := 0; head < heads; head++ {
		for _, token := range tokens {
			array.Data = append(array.Data, token[head*dim:(head+1)*dim]...)
		}
	}
	answer.PutArray(name, array)
}

// PutMask tells what each row sees of each column; additive: as 0 and -inf.
func (answer *Answer) PutMask(rows, columns int, seen []bool, additive bool) {
	words := map[bool]string{true: "1", false: "0"}
	if additive {
		words = map[bool]string{true: "0", false: `"-inf"`}
	}
	data := join(seen, func(each bool) string { return words[each] })
	answer.putData("mask", []int{rows, columns}, data)
}

// PutCache puts a new cache, of the kind of the one that was asked.
func (answer *Answer) PutCache(content any) {
	answer.PutInteger("cache", answer.tables.caches.add(cache{answer.kind, content}))
}

// PutSnapshot puts null for nil.
func (answer *Answer) PutSnapshot(name string, snapshot *Snapshot) {
	answer.PutJSON(name, answer.number(snapshot))
}

func (answer *Answer) PutSnapshots(name string, snapshots []*Snapshot) {
	answer.PutJSON(name, join(snapshots, answer.number))
}

func (answer *Answer) PutSaved(content any) {
	answer.PutInteger("saved", answer.tables.saved.add(content))
}

func (answer *Answer) putData(name string, shape []int, data string) {
	answer.PutJSON(name, `{"shape":`+join(shape, strconv.Itoa)+`,"data":`+data+"}")
}

func (answer *Answer) number(snapshot *Snapshot) string {
	if snapshot == nil {
		return "null"
	}
	number := answer.tables.snapshots.add(*snapshot)
	form := `{"number":%d,"begin":%d,"end":%d}`
	return fmt.Sprintf(form, number, snapshot.Begin, snapshot.End)
}

func join[T any](items []T, format func(T) string) string {
	texts := make([]string, len(items))
	for place, item := range items {
		texts[place] = format(item)
	}
	return "[" + strings.Join(texts, ",") + "]"
}

func quote(text string) string {
	quoted, _ := json.Marshal(text)
	return string(quoted)
}

// formatNumber writes as many digits as tell any two floats apart.
func formatNumber(number float32) string {
	switch wide := float64(number); {
	case math.IsNaN(wide):
		return "null"
	case math.IsInf(wide, 1):
		return `"inf"`
	case math.IsInf(wide, -1):
		return `"-inf"`
	default:
		return strconv.FormatFloat(wide, 'g', -1, 32)
	}
}

// --- what a driver declares ------------------------------------------------------------
// "declares" is an object of JSON: all that the README of drivers lists beside what the
// kit adds.

// Operation is one of caches of type C. Run nil: declared, but not written yet.
type Operation[C any] struct {
	Name string
	Run  func(C, Message, *Answer)
}

// Kind is one that the driver declares; see MakeKind.
type Kind struct {
	contract, kind, declares string
	open                     func(Message) any
	names                    []string
	operations               map[string]func(any, Message, *Answer)
}

// MakeKind declares a kind. declares: {"refuses": true, "config": {…}}; the kit adds
// "operations". open gets the config.
func MakeKind[C any](
	contract, kind, declares string, open func(Message) C, operations []Operation[C],
) *Kind {
	made := &Kind{contract: contract, kind: kind, declares: declares}
	made.open = func(config Message) any { return open(config) }
	made.operations = map[string]func(any, Message, *Answer){}
	for _, each := range operations {
		made.names = append(made.names, each.Name)
		if run := each.Run; run != nil {
			made.operations[each.Name] = func(asked any, message Message, answer *Answer) {
				run(asked.(C), message, answer)
			}
		}
	}
	return made
}

// Driver declares {"name": "…", …}; the kit adds "protocol" and "contracts".
type Driver struct {
	Declares string
	Kinds    []*Kind
	tables   tables
}

// Run answers line by line until the input ends. A line without an id is answered as 0.
func (driver *Driver) Run() {
	driver.tables = tables{table[cache]{}, table[Snapshot]{}, table[any]{}}
	input := bufio.NewReader(os.Stdin)
	for {
		line, err := input.ReadBytes('\n')
		if err == nil {
			id, text := driver.answerLine(line)
			_, err = fmt.Printf("{\"id\":%d%s}\n", id, text)
		}
		if err != nil {
			return
		}
	}
}

func (driver *Driver) answerLine(line []byte) (id int, text string) {
	defer func() {
		switch caught := recover().(type) {
		case nil:
		case refusal:
			text = `,"error":` + quote(caught.err) + `,"message":` + quote(caught.message)
		default:
			panic(caught)
		}
	}()
	message := Message{driver.parse(line), &driver.tables}
	id = message.GetInteger("id")
	switch operation := message.GetText("op"); operation {
	case "hello":
		return id, driver.hello()
	case "open":
		return id, driver.open(message)
	case "drop":
		driver.drop(message)
		return id, ""
	default:
		return id, driver.operate(operation, message)
	}
}

func (driver *Driver) parse(line []byte) map[string]any {
	var fields map[string]any
	decoder := json.NewDecoder(bytes.NewReader(line))
	decoder.UseNumber()
	if err := decoder.Decode(&fields); err != nil || fields == nil {
		fail("the line is not JSON of a message: %v", err)
	}
	if _, err := decoder.Token(); err != io.EOF {
		fail("the line is more than one message")
	}
	return fields
}

func (driver *Driver) hello() string {
	contracts, names := map[string][]string{}, []string{}
	for _, kind := range driver.Kinds {
		if contracts[kind.contract] == nil {
			names = append(names, kind.contract)
		}
		text := quote(kind.kind) + `:{"operations":` + join(kind.names, quote)
		text += openObject(kind.declares) + "}"
		contracts[kind.contract] = append(contracts[kind.contract], text)
	}
	for place, name := range names {
		names[place] = quote(name) + ":{" + strings.Join(contracts[name], ",") + "}"
	}
	text := `,"protocol":1` + openObject(driver.Declares)
	return text + `,"contracts":{` + strings.Join(names, ",") + "}"
}

func (driver *Driver) open(message Message) string {
	config := message.GetObject("config")
	name := config.GetText("kind")
	for _, kind := range driver.Kinds {
		if kind.kind == name {
			answer := Answer{kind: kind, tables: &driver.tables}
			answer.PutCache(kind.open(config))
			return answer.text.String()
		}
	}
	Refuse("missing", "this driver has no kind %s", name)
	return ""
}

// drop forgets what nobody will name again.
func (driver *Driver) drop(message Message) {
	tables := &driver.tables
	dropAll(message, "caches", tables.caches)
	dropAll(message, "snapshots", tables.snapshots)
	dropAll(message, "saved", tables.saved)
}

func dropAll[T any](message Message, name string, items table[T]) {
	if _, found := message.fields[name]; !found {
		return
	}
	for _, number := range message.GetIntegers(name) {
		items.get(number, name)
		delete(items, number)
	}
}

func (driver *Driver) operate(operation string, message Message) string {
	asked := driver.tables.caches.get(message.GetInteger("cache"), "cache")
	run := asked.kind.operations[operation]
	if run == nil {
		Refuse("missing", "%s is not written for %s", operation, asked.kind.kind)
	}
	answer := Answer{kind: asked.kind, tables: &driver.tables}
	run(asked.content, message, &answer)
	return answer.text.String()
}

// openObject returns the rest of an object after its first field.
func openObject(object string) string {
	inside := strings.TrimSuffix(strings.TrimPrefix(strings.TrimSpace(object), "{"), "}")
	if strings.TrimSpace(inside) == "" {
		return ""
	}
	return "," + inside
}

// Package reading is what one message between the gateway and a server says, as far as a look at
// it tells: no connection, no session and no time is known here.
//
// A result comes in and goes out as a reply for the caller ([ReadAnswer], [SessionReply],
// [ModernReply], [ModernFailure]), or as the questions that it asks (rounds.go). A request gets its
// metadata ([WithMeta]) and the answers of a round ([WithAnswers]). A client's capabilities say what
// it may be asked ([MayAsk]), and [CheckAnswer] what is wrong with what it answers. What is kept of
// a message is copied; all else is spliced.
package reading

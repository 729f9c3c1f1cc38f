/* The grammar of the language, for sources and dumps alike. Keywords, clause words and ends of statements are told
 * apart before (tokens.c), so that no word is reserved here; which statement may stand in which section, and what only
 * dumps may have, is looked at after (places.c). Actions only build: see build.h. */
%define api.pure full
%define api.prefix {dtm_yy}
%define api.location.type {dtm_span}
%define parse.error custom
%define parse.lac full
%expect 0
%locations
%parse-param {dtm_parser *parser}
%lex-param {dtm_parser *parser}

%code requires {
#include "frontend/build.h"
}

%code {
#include "frontend/tokens.h"

static int dtm_yylex(YYSTYPE *value, dtm_span *location, dtm_parser *parser);
static void dtm_yyerror(dtm_span *location, dtm_parser *parser, const char *message);
#define YYLLOC_DEFAULT(current, rhs, n)                                                                                \
    ((current) = (n) ? dtm_span_join(YYRHSLOC(rhs, 1), YYRHSLOC(rhs, n))                                               \
                     : (dtm_span){YYRHSLOC(rhs, 0).file, YYRHSLOC(rhs, 0).end, YYRHSLOC(rhs, 0).end})
#define EXPR_OPERATION(op, left, right) dtm_ast_binary(parser, op, left, right)
}

%union {
    const dtm_token *token;
    dtm_name name;
    dtm_names names;
    dtm_expr *expr;
    dtm_argument argument;
    dtm_clause clause;
    dtm_call *call;
    dtm_word word;
    dtm_axis_use axis;
    dtm_axes axes;
    dtm_dim_use dim;
    dtm_type_expr *type;
    dtm_target target;
    dtm_targets targets;
    dtm_bindings bindings;
    dtm_binding binding;
    dtm_expectation expectation;
    dtm_expectations expectations;
    dtm_suffix suffix;
    dtm_ast_block *block;
    dtm_statement *statement;
    bool flag;
}

%token <token> NAME "a name" DOTTED "a name with dots" NUMBER "a number" STRING "a string"
%token END "the end of the statement"
%token BLOCK_OPEN "`{`" BLOCK_CLOSE "`}`" BRACE_OPEN "`{ `" BRACE_CLOSE "` }`"
%token '(' "`(`" ')' "`)`" '[' "`[`" ']' "`]`" ',' "`,`" ':' "`:`" '=' "`=`" '@' "`@`" '~' "`~`" '.' "`.`"
%token ARROW "`->`" DOTDOT "`..`"
%token '+' "`+`" '-' "`-`" '*' "`*`" '/' "`/`" '%' "`%`"
%token EQUAL "`==`" NOT_EQUAL "`!=`" '<' "`<`" LESS_EQUAL "`<=`" '>' "`>`" GREATER_EQUAL "`>=`"
/* words inside statements */
%token OVER "`over`" AT "`at`" AS "`as`" WHERE "`where`" ON "`on`" FROM "`from`" WITH "`with`" USING "`using`"
%token BY "`by`" PER "`per`" STORING "`storing`" SPLITS "`splits`" OF "`of`" NAMED "`named`" WHY "`why`"
%token REVERSED "`reversed`"
/* first words of statements */
%token <token> AFTER "`after`" USE "`use`" DIM "`dim`" CONST "`const`" MESH "`mesh`" MACHINE "`machine`" DEF "`def`"
%token <token> MODEL "`model`" PARALLEL "`parallel`" TRAIN "`train`" GENERATE "`generate`"
%token <token> INPUT "`input`" WEIGHT "`weight`" STATE "`state`" LOSS "`loss`" REPORT "`report`" OUTPUT "`output`"
%token <token> RETURN "`return`" REPEAT "`repeat`" MICROBATCH "`microbatch`" REGION "a region"
%token <token> MICROBATCHES "`microbatches`" ZERO "`zero`" KEEP "`keep`" RECOMPUTE "`recompute`" EXPECT "`expect`"
%token <token> SETTING "a setting"

%nonassoc EQUAL NOT_EQUAL '<' LESS_EQUAL '>' GREATER_EQUAL
%left '+' '-'
%left '*' '/' '%'
%precedence NEGATIVE

%type <name> name any_name place pass
%type <names> names any_names storing parameters
%type <expr> expr primary range part list item_list parts initial first_opt
%type <argument> argument
%type <clause> arguments
%type <call> clauses clauses_opt
%type <word> word
%type <axis> axis
%type <axes> axes on_opt
%type <dim> dim
%type <type> type shape dims dim_list
%type <target> target
%type <targets> targets shared_names loss_bucket
%type <binding> binding
%type <bindings> bindings settings_opt mesh_opt of_opt of order_opt
%type <expectation> expectation
%type <expectations> expectations expectations_opt
%type <suffix> suffix named_opt at_opt line_opt why_opt
%type <block> block statements file_statements
%type <statement> statement declaration model_statement region rule flags from_opt crossing
%type <flag> reversed_opt by_opt at_most

%%

file: file_statements { dtm_ast_file(parser, (dtm_name){0}, $1); }
    | AFTER pass END file_statements { dtm_ast_file(parser, $2, $4); }
    ;
pass: NAME { $$ = dtm_ast_name($1); } ;
file_statements: %empty { $$ = dtm_ast_new_block(parser); }
    | file_statements statement { $$ = dtm_ast_append(parser, $1, $2); }
    ;
block: BLOCK_OPEN statements BLOCK_CLOSE { $$ = $2; $$->span = @$; } ;
statements: %empty { $$ = dtm_ast_new_block(parser); }
    | statements statement { $$ = dtm_ast_append(parser, $1, $2); }
    ;

statement: declaration END { $$ = $1; $$->span = @1; }
    | model_statement suffix END { $$ = dtm_ast_suffix($1, $2, @1); }
    | region END { $$ = $1; $$->span = @1; }
    | rule suffix END { $$ = dtm_ast_suffix($1, $2, @1); }
    | error END { $$ = dtm_ast_broken(parser, @1, NULL); yyerrok; }
    | error block END { $$ = dtm_ast_broken(parser, @1, $2); yyerrok; }
    ;

/* ---- declarations ---- */

declaration: USE STRING { $$ = dtm_ast_use(parser, $1, $2); }
    | DIM bindings { $$ = dtm_ast_bindings(parser, DTM_STATEMENT_DIM, $1, $2); }
    | CONST bindings { $$ = dtm_ast_bindings(parser, DTM_STATEMENT_CONST, $1, $2); }
    | MESH BRACE_OPEN mesh_opt BRACE_CLOSE { $$ = dtm_ast_bindings(parser, DTM_STATEMENT_MESH, $1, $3); }
    | MACHINE block { $$ = dtm_ast_section(parser, DTM_STATEMENT_MACHINE, $1, (dtm_name){0}, $2); }
    | DEF NAME '(' parameters ')' block { $$ = dtm_ast_def(parser, $1, dtm_ast_name($2), $4, $6); }
    | MODEL NAME mesh_opt block { $$ = dtm_ast_model(parser, $1, $2, $3, $4); }
    | PARALLEL block { $$ = dtm_ast_section(parser, DTM_STATEMENT_PARALLEL, $1, (dtm_name){0}, $2); }
    | TRAIN block { $$ = dtm_ast_section(parser, DTM_STATEMENT_TRAIN, $1, (dtm_name){0}, $2); }
    | GENERATE block { $$ = dtm_ast_section(parser, DTM_STATEMENT_GENERATE, $1, (dtm_name){0}, $2); }
    | NAME block { $$ = dtm_ast_section(parser, DTM_STATEMENT_GROUP, $1, dtm_ast_name($1), $2); }
    | SETTING expr { $$ = dtm_ast_valued(parser, DTM_STATEMENT_SETTING, $1, $2); }
    ;
mesh_opt: %empty { $$ = (dtm_bindings){0}; } | bindings ;
bindings: binding { $$ = dtm_ast_binding(parser, (dtm_bindings){0}, $1); }
    | bindings ',' binding { $$ = dtm_ast_binding(parser, $1, $3); }
    ;
binding: NAME '=' expr { $$ = (dtm_binding){dtm_ast_name($1), $3}; }
    | NAME '=' list { $$ = (dtm_binding){dtm_ast_name($1), $3}; }
    ;
parameters: %empty { $$ = (dtm_names){0}; } | names ;

/* ---- inside a model, a def, a region ---- */

model_statement: INPUT shared_names ':' type { $$ = dtm_ast_input(parser, $1, $2, $4); }
    | WEIGHT shared_names ':' type initial flags from_opt { $$ = dtm_ast_weight(parser, $1, $2, $4, $5, $6, $7); }
    | STATE shared_names ':' type initial { $$ = dtm_ast_state(parser, $1, $2, $4, $5); }
    | targets '=' expr { $$ = dtm_ast_assign(parser, $1, $3); }
    | NAME '(' clauses_opt ')' { $$ = dtm_ast_call_statement(parser, $1, $3, @$); }
    | LOSS '=' expr { $$ = dtm_ast_loss(parser, $1, NULL, $3); }
    | LOSS ':' type '=' expr { $$ = dtm_ast_loss(parser, $1, $3, $5); }
    | loss_bucket '=' expr { $$ = dtm_ast_assign(parser, $1, $3); }
    | REPORT target '=' expr { $$ = dtm_ast_named_value(parser, DTM_STATEMENT_REPORT, $1, $2, $4); }
    | OUTPUT target '=' expr { $$ = dtm_ast_named_value(parser, DTM_STATEMENT_OUTPUT, $1, $2, $4); }
    | RETURN expr { $$ = dtm_ast_valued(parser, DTM_STATEMENT_RETURN, $1, $2); }
    ;
shared_names: any_name { $$ = dtm_ast_target(parser, (dtm_targets){0}, (dtm_target){$1, NULL}); }
    | shared_names ',' any_name { $$ = dtm_ast_target(parser, $1, (dtm_target){$3, NULL}); }
    ;
targets: target { $$ = dtm_ast_target(parser, (dtm_targets){0}, $1); }
    | targets ',' target { $$ = dtm_ast_target(parser, $1, $3); }
    ;
target: any_name { $$ = (dtm_target){$1, NULL}; }
    | any_name ':' type { $$ = (dtm_target){$1, $3}; }
    ;
/* In a dump: the first of the tensors of a bucket. */
loss_bucket: LOSS ':' type ',' target
        { $$ = dtm_ast_target(parser, dtm_ast_target(parser, (dtm_targets){0}, (dtm_target){dtm_ast_name($1), $3}), $5); }
    | loss_bucket ',' target { $$ = dtm_ast_target(parser, $1, $3); }
    ;
initial: %empty { $$ = NULL; } | '=' expr { $$ = $2; } ;
flags: %empty { $$ = dtm_ast_weight_parts(parser); }
    | flags ',' NAME { $$ = dtm_ast_flag(parser, $1, $3, NULL); }
    | flags ',' NAME NAME { $$ = dtm_ast_flag(parser, $1, $3, $4); }
    ;
from_opt: %empty { $$ = NULL; }
    | FROM STRING { $$ = dtm_ast_from(parser, $2, NULL); }
    | FROM STRING AS '[' parts ']' { $$ = dtm_ast_from(parser, $2, $5); }
    ;
parts: part { $$ = dtm_ast_list(parser, NULL, $1); }
    | parts ',' part { $$ = dtm_ast_list(parser, $1, $3); }
    ;
part: expr | expr OF expr { $$ = dtm_ast_pair(parser, DTM_EXPR_PART, $1, $3); } ;

region: REPEAT NAME '=' expr first_opt reversed_opt suffix block
        { $$ = dtm_ast_repeat(parser, DTM_STATEMENT_REPEAT, $1, $2, $4, $5, $6, $7, $8); }
    | MICROBATCH NAME '=' expr order_opt suffix block
        {
            $$ = dtm_ast_repeat(parser, DTM_STATEMENT_MICROBATCH, $1, $2, $4, NULL, false, $6, $7);
            $$->bindings = $5;
        }
    | REGION of_opt suffix block { $$ = dtm_ast_region(parser, $1, $2, $3, $4); }
    ;
/* In a dump: the number of a repeat's first copy; which rank or stage a model or region is of. */
first_opt: %empty { $$ = NULL; } | FROM expr { $$ = $2; } ;
of_opt: %empty { $$ = (dtm_bindings){0}; } | of ;
of: NAME '=' expr { $$ = dtm_ast_binding(parser, (dtm_bindings){0}, (dtm_binding){dtm_ast_name($1), $3}); }
    | of ',' NAME '=' expr { $$ = dtm_ast_binding(parser, $1, (dtm_binding){dtm_ast_name($3), $5}); }
    | of ',' NAME { $$ = dtm_ast_binding(parser, $1, (dtm_binding){dtm_ast_name($3), NULL}); } /* a flag */
    ;
order_opt: %empty { $$ = (dtm_bindings){0}; } | ',' of { $$ = $2; } ;
reversed_opt: %empty { $$ = false; } | REVERSED { $$ = true; } ;

suffix: named_opt at_opt line_opt why_opt { $$ = dtm_ast_whole_suffix($1, $2, $3, $4, @$); } ;
named_opt: %empty { $$ = (dtm_suffix){0}; } | NAMED STRING { $$ = (dtm_suffix){.named = $2->text}; } ;
at_opt: %empty { $$ = (dtm_suffix){0}; } | at_opt AT expr { $$ = dtm_ast_offset(parser, $1, $3); } ;
line_opt: %empty { $$ = (dtm_suffix){0}; }
    | '@' NUMBER { $$ = dtm_ast_line(parser, NULL, $2); }
    | '@' STRING ':' NUMBER { $$ = dtm_ast_line(parser, $2, $4); }
    ;
why_opt: %empty { $$ = (dtm_suffix){0}; } | WHY STRING { $$ = (dtm_suffix){.why = $2->text}; } ;

/* ---- types and layouts ---- */

type: shape
    | type NAME '@' axes { $$ = dtm_ast_pending(parser, $1, dtm_ast_name($2), $4, @$); }
    ;
shape: dims { $$ = $1; $$->span = @$; }
    | NAME dims { $$ = $2; $$->dtype = dtm_ast_name($1); $$->span = @$; }
    ;
dims: '[' ']' { $$ = dtm_ast_type(parser); } | '[' dim_list ']' { $$ = $2; } ;
dim_list: dim { $$ = dtm_ast_dim(parser, dtm_ast_type(parser), $1, @1); }
    | dim_list ',' dim { $$ = dtm_ast_dim(parser, $1, $3, @3); }
    ;
dim: any_name { $$ = (dtm_dim_use){.name = $1}; }
    | dim '=' NUMBER { $$ = dtm_ast_dim_size(parser, $1, $3); }
    | dim '@' axes { $$ = dtm_ast_dim_axes(parser, $1, $3, false, @3); }
    | dim '@' '-' { $$ = dtm_ast_dim_axes(parser, $1, (dtm_axes){0}, true, @3); }
    | dim '~' NAME { $$ = dtm_ast_dim_order(parser, $1, $3); }
    ;
axes: axis { $$ = dtm_ast_axis(parser, (dtm_axes){0}, $1); }
    | axes '.' axis { $$ = dtm_ast_axis(parser, $1, $3); }
    ;
axis: any_name { $$ = (dtm_axis_use){$1, 0}; }
    | any_name ':' NUMBER { $$ = (dtm_axis_use){$1, dtm_ast_whole(parser, $3)}; }
    ;

/* ---- parallel ---- */

rule: NAME SPLITS names by_opt crossing settings_opt { $$ = dtm_ast_splits(parser, $1, $3, $4, $5, $6); }
    | MICROBATCHES expr { $$ = dtm_ast_valued(parser, DTM_STATEMENT_MICROBATCHES, $1, $2); }
    | ZERO expr ON names { $$ = dtm_ast_rule(parser, DTM_STATEMENT_ZERO, $1, $2, $4); }
    | KEEP any_name AS dims { $$ = dtm_ast_keep(parser, $1, $2, $4, @4); }
    | RECOMPUTE expr storing { $$ = dtm_ast_rule(parser, DTM_STATEMENT_RECOMPUTE, $1, $2, $3); }
    | EXPECT place BRACE_OPEN expectations_opt BRACE_CLOSE { $$ = dtm_ast_expect(parser, $1, $2, $4); }
    ;
by_opt: %empty { $$ = false; } | BY NAME { $$ = dtm_ast_by(parser, $2); } ;
crossing: %empty { $$ = dtm_ast_crossing(parser, NULL, NULL); }
    | USING NAME { $$ = dtm_ast_crossing(parser, $2, NULL); }
    | USING NAME ',' NAME { $$ = dtm_ast_crossing(parser, $2, $4); }
    ;
settings_opt: %empty { $$ = (dtm_bindings){0}; } | WITH bindings { $$ = $2; } ;
storing: %empty { $$ = (dtm_names){0}; } | STORING any_names { $$ = $2; } ;
place: %empty { $$ = (dtm_name){0}; } | any_name ;
expectations_opt: %empty { $$ = (dtm_expectations){0}; } | expectations ;
expectations: expectation { $$ = dtm_ast_expectation(parser, (dtm_expectations){0}, $1, @1); }
    | expectations ',' expectation { $$ = dtm_ast_expectation(parser, $1, $3, @3); }
    ;
expectation: NAME on_opt at_most expr { $$ = (dtm_expectation){@$, dtm_ast_name($1), $2, $3, $4}; } ;
on_opt: %empty { $$ = (dtm_axes){0}; } | ON axes { $$ = $2; } ;
at_most: '=' { $$ = false; } | LESS_EQUAL { $$ = true; } ;

/* ---- names ---- */

name: NAME { $$ = dtm_ast_name($1); } ;
any_name: NAME { $$ = dtm_ast_name($1); } | DOTTED { $$ = dtm_ast_name($1); } ;
names: name { $$ = dtm_ast_names(parser, (dtm_names){0}, $1); }
    | names ',' name { $$ = dtm_ast_names(parser, $1, $3); }
    ;
any_names: any_name { $$ = dtm_ast_names(parser, (dtm_names){0}, $1); }
    | any_names ',' any_name { $$ = dtm_ast_names(parser, $1, $3); }
    ;

/* ---- expressions ---- */

expr: primary
    | '-' expr %prec NEGATIVE { $$ = dtm_ast_negate(parser, $2, @$); }
    | expr '+' expr { $$ = EXPR_OPERATION(DTM_OPERATOR_ADD, $1, $3); }
    | expr '-' expr { $$ = EXPR_OPERATION(DTM_OPERATOR_SUBTRACT, $1, $3); }
    | expr '*' expr { $$ = EXPR_OPERATION(DTM_OPERATOR_MULTIPLY, $1, $3); }
    | expr '/' expr { $$ = EXPR_OPERATION(DTM_OPERATOR_DIVIDE, $1, $3); }
    | expr '%' expr { $$ = EXPR_OPERATION(DTM_OPERATOR_REMAINDER, $1, $3); }
    | expr EQUAL expr { $$ = EXPR_OPERATION(DTM_OPERATOR_EQUAL, $1, $3); }
    | expr NOT_EQUAL expr { $$ = EXPR_OPERATION(DTM_OPERATOR_NOT_EQUAL, $1, $3); }
    | expr '<' expr { $$ = EXPR_OPERATION(DTM_OPERATOR_LESS, $1, $3); }
    | expr LESS_EQUAL expr { $$ = EXPR_OPERATION(DTM_OPERATOR_LESS_EQUAL, $1, $3); }
    | expr '>' expr { $$ = EXPR_OPERATION(DTM_OPERATOR_GREATER, $1, $3); }
    | expr GREATER_EQUAL expr { $$ = EXPR_OPERATION(DTM_OPERATOR_GREATER_EQUAL, $1, $3); }
    ;
primary: any_name { $$ = dtm_ast_name_expr(parser, $1); }
    | NUMBER { $$ = dtm_ast_number(parser, $1); }
    | STRING { $$ = dtm_ast_string(parser, $1); }
    | '(' expr ')' { $$ = dtm_ast_parenthesised($2, @$); }
    | NAME '(' clauses_opt ')' { $$ = dtm_ast_call(parser, $1, $3, @$); }
    | NAME '(' clauses_opt ')' BRACE_OPEN NAME ARROW expr BRACE_CLOSE
        { $$ = dtm_ast_lambda(parser, dtm_ast_call(parser, $1, $3, @$), $6, $8, @$); }
    ;
clauses_opt: %empty { $$ = dtm_ast_clauses(parser, NULL, (dtm_clause){0}); } | clauses ;
clauses: arguments { $$ = dtm_ast_clauses(parser, NULL, $1); }
    | word arguments { $$ = dtm_ast_clause(parser, NULL, $1, $2, @1, @2); } /* of a dump: receive(on pp) */
    | clauses word arguments { $$ = dtm_ast_clause(parser, $1, $2, $3, @2, @3); }
    ;
word: OVER { $$ = DTM_WORD_OVER; } | AT { $$ = DTM_WORD_AT; } | AS { $$ = DTM_WORD_AS; } | WHERE { $$ = DTM_WORD_WHERE; }
    | ON { $$ = DTM_WORD_ON; } | FROM { $$ = DTM_WORD_FROM; } | WITH { $$ = DTM_WORD_WITH; } | USING { $$ = DTM_WORD_USING; }
    | BY { $$ = DTM_WORD_BY; } | PER { $$ = DTM_WORD_PER; }
    ;
arguments: argument { $$ = dtm_ast_argument(parser, (dtm_clause){0}, $1, @1); }
    | arguments ',' argument { $$ = dtm_ast_argument(parser, $1, $3, @3); }
    ;
argument: expr { $$ = (dtm_argument){(dtm_name){0}, $1}; }
    | NAME '=' expr { $$ = (dtm_argument){dtm_ast_name($1), $3}; }
    | NAME '=' range { $$ = (dtm_argument){dtm_ast_name($1), $3}; }
    | NAME '=' list { $$ = (dtm_argument){dtm_ast_name($1), $3}; }
    ;
range: expr DOTDOT expr { $$ = dtm_ast_pair(parser, DTM_EXPR_RANGE, $1, $3); } ;
list: '[' item_list ']' { $$ = $2; $$->span = @$; } ;
item_list: expr { $$ = dtm_ast_list(parser, NULL, $1); }
    | item_list ',' expr { $$ = dtm_ast_list(parser, $1, $3); }
    ;

%%

static int dtm_yylex(YYSTYPE *value, dtm_span *location, dtm_parser *parser) {
    const dtm_token *token = dtm_parser_next(parser);
    value->token = token;
    *location = token->span;
    return token->kind;
}

/* Bison's own messages: only "memory exhausted", when its stack is full. */
static void dtm_yyerror(dtm_span *location, dtm_parser *parser, const char *message) {
    (void)message;
    dtm_parser_too_deep(parser, *location);
}

static int yyreport_syntax_error(const yypcontext_t *state, dtm_parser *parser) {
    int expected[64]; /* more than tokens that can be expected at once; a longer list is cut */
    int count = yypcontext_expected_tokens(state, expected, 64);
    const char *names[64];
    for (int i = 0; i < count; i++) names[i] = yysymbol_name(expected[i]);
    dtm_parser_syntax_error(parser, names, count > 0 ? (size_t)count : 0);
    return 0;
}
